# SPDX-License-Identifier: Apache-2.0
"""HIP from Python, as Python libraries use it: the runtime loaded with RTLD_LOCAL, and
child processes created by fork and by spawn. Prints its results; hip_test.go compares
them with and without the shim."""

import ctypes
import multiprocessing
import os
import sys
import threading

BLOCK_NS = 10000
MASK = (1 << 64) - 1


def fold(word, seed, block):
    """Effect of one block of a kernel on its result (shim/virtual/vgpu.h)."""
    word ^= seed << 32 | block
    word = (word << 23 | word >> 41) & MASK
    return (word * 0x9E3779B97F4A7C15 + 1) & MASK


class Hip:
    """The runtime, loaded on first use."""

    def __init__(self):
        self.lib = ctypes.CDLL("libamdhip64.so.6")

    def __getattr__(self, name):
        call = getattr(self.lib, name)

        def checked(*args):
            code = call(*args)
            if code != 0:
                raise RuntimeError(f"{name}: {code}")

        return checked

    def prepare(self, device=0):
        self.hipSetDevice(device)
        self.stream, self.memory = ctypes.c_void_p(), ctypes.c_void_p()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.hipStreamCreate(ctypes.byref(self.stream))
        self.hipMalloc(ctypes.byref(self.memory), ctypes.c_size_t(16))
        self.hipMemset(self.memory, 0, ctypes.c_size_t(16))
        self.hipModuleLoadData(ctypes.byref(module), b"image")
        self.hipModuleGetFunction(ctypes.byref(self.function), module, b"xs_spin")
        self.hipDeviceSynchronize()
        self.expected, self.launched = 0, 0

    def launch(self, us=200, out=None):
        """Returns the runtime's error code; 0 is success."""
        seed = self.launched * 2654435761 + 1 & 0xFFFFFFFF
        arguments = [ctypes.c_uint64(out or self.memory.value), ctypes.c_uint32(us), ctypes.c_uint32(seed)]
        pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(a) for a in arguments])
        code = self.lib.hipModuleLaunchKernel(self.function, 1, 1, 1, 64, 1, 1, 0, self.stream, pointers, None)
        if code == 0:
            self.launched += 1
            for block in range(max(1, -(-us * 1000 // BLOCK_NS))):
                self.expected = fold(self.expected, seed, block)
        return code

    def right(self):
        words = (ctypes.c_uint64 * 2)()
        self.hipStreamSynchronize(self.stream)
        self.hipMemcpyDtoH(words, self.memory, ctypes.c_size_t(16))
        return words[0] == self.expected and words[1] == self.launched


class QueueInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in
                ("index", "kind", "pci_domain", "pci_bus_slot", "priority", "busy", "held", "rsv")] + [
        ("submitted", ctypes.c_uint64)]


def queues():
    """Returns the shim's counters of this process; None without the shim."""
    try:
        call = ctypes.CDLL(None).xs_queues
    except AttributeError:
        return None
    found = (QueueInfo * 8)()
    return [(f"{q.pci_bus_slot:04x}", q.busy, q.submitted) for q in found[:call(found, 8)]]


def joined():
    try:
        shim = ctypes.CDLL(None)
        return int(shim.xs_queues(None, 0) > 0 and shim.xs_available())
    except AttributeError:
        return None


def child(count):
    hip = Hip()
    try:
        hip.prepare()
        for _ in range(count):
            if hip.launch() != 0:
                return os.getpid(), "refused", None
        right = hip.right()
        return os.getpid(), "right" if right else "wrong", queues()
    except RuntimeError as error:
        return os.getpid(), str(error), None


def pool(method, processes=3):
    with multiprocessing.get_context(method).Pool(processes, maxtasksperchild=1) as workers:
        results = workers.map_async(child, [20] * processes, chunksize=1).get(timeout=60)
    for pid, what, have in sorted(results):
        print(f"{method} child: {what}", flush=True)
        if have is not None:
            print(f"shim: {method} child has {have}", flush=True)


def before():
    """Children of a parent that has not used HIP yet."""
    pool("fork")
    pool("spawn")


def after():
    """Children of a parent with threads that uses HIP: HIP fails after fork, but not after spawn."""
    hip = Hip()
    hip.prepare()
    stop = threading.Event()
    codes = set()

    def busy():
        while not stop.is_set():
            codes.add(hip.launch(100))
            hip.hipStreamSynchronize(hip.stream)

    thread = threading.Thread(target=busy)
    thread.start()
    pool("fork")
    pool("spawn")
    stop.set()
    thread.join()
    print("parent:", "right" if hip.right() and codes == {0} else "wrong", flush=True)
    print(f"shim: parent has {[q[:2] for q in queues() or []]}", flush=True)


def refused():
    """The caller gets the error of a rejected launch, which counts as no work."""
    hip = Hip()
    hip.prepare()
    assert hip.launch() == 0 and hip.right()
    submitted = [q[2] for q in queues() or []]
    print("a kernel with no such memory:", hip.launch(out=1 << 52), flush=True)
    print("last error:", hip.lib.hipGetLastError(), flush=True)
    print("no arguments:", hip.lib.hipModuleLaunchKernel(hip.function, 1, 1, 1, 64, 1, 1, 0, hip.stream, None, None), flush=True)
    print("no grid:", hip.lib.hipModuleLaunchKernel(hip.function, 0, 1, 1, 64, 1, 1, 0, hip.stream, None, None), flush=True)
    print("a stub nobody registered:", hip.lib.hipLaunchCooperativeKernel(None, *[ctypes.c_uint64(0)] * 4, None, 0, hip.stream), flush=True)
    print("shim:", "idle" if all(q[1] == 0 for q in queues() or []) else "busy",
          "nothing counted" if [q[2] for q in queues() or []] == submitted else "counted", flush=True)
    assert hip.launch() == 0
    print("afterwards:", "right" if hip.right() else "wrong", flush=True)


def devices():
    """Work runs on the device of the stream, not of the thread; also on both at once."""
    one, two = Hip(), Hip()
    one.prepare(0)
    two.prepare(1)  # sets the thread's device
    for _ in range(40):  # longer than a stall of the machine
        assert one.launch(50000) == 0
    print("shim: busy", sorted(q[0] for q in queues() or [] if q[1]), flush=True)
    assert two.launch(50000) == 0
    print("shim: busy", sorted(q[0] for q in queues() or [] if q[1]), flush=True)
    two.hipDeviceSynchronize()  # of the second device
    print("shim: busy", sorted(q[0] for q in queues() or [] if q[1]), flush=True)
    print("both:", "right" if one.right() and two.right() else "wrong", flush=True)
    print("shim: busy", sorted(q[0] for q in queues() or [] if q[1]), flush=True)


if __name__ == "__main__":
    {"before": before, "after": after, "refused": refused, "devices": devices}[sys.argv[1]]()
    print(f"shim: joined {joined()}", flush=True)
    print("end", flush=True)
