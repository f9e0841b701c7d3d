#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast host memory becomes ready for copies, and how fast it is copied: without XSched. pinning.py MIB PIECE_MIB prints a JSON object.
pinning.py beside SECONDS: what a thread that makes it ready costs another thread's requests."""
import ctypes
import json
import mmap
import sys
import threading
import time

MIB = 1 << 20
HUGE, NO_HUGE, POPULATE_WRITE = 14, 15, 23  # madvise


def now():
    return time.monotonic()


class Driver:
    def __init__(self):
        self.cuda, self.libc, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def enter(self):
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError("%s: %d" % (name, code))

    def host(self, size, advice):
        """Anonymous memory at a multiple of 2 MiB."""
        at = self.libc.mmap(None, size + 2 * MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        begin = (at + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        self.libc.madvise(begin, size, advice)
        return at, begin

    def spread(self, threads, pieces, do):
        """do(piece) for all pieces by so many threads."""
        left, lock, failed = list(pieces), threading.Lock(), []

        def work():
            try:
                self.enter()
                while True:
                    with lock:
                        if not left:
                            return
                        piece = left.pop(0)
                    do(piece)
            except RuntimeError as e:
                failed.append(str(e))
        all_ = [threading.Thread(target=work) for _ in range(threads)]
        begun = now()
        for t in all_:
            t.start()
        for t in all_:
            t.join()
        if failed:
            raise RuntimeError(failed[0])
        return now() - begun

    def pin(self, size, piece, advice, touch, threads):
        """Seconds to touch and to pin memory, and to undo it."""
        at, begin = self.host(size, advice)
        pieces = range(begin, begin + size, piece)
        touched = 0.0
        if touch:
            touched = self.spread(touch, pieces, lambda a: self.libc.madvise(a, piece, POPULATE_WRITE))
        pinned = self.spread(threads, pieces, lambda a: self.call("cuMemHostRegister_v2", ctypes.c_void_p(a), ctypes.c_size_t(piece), 0))
        undone = self.spread(1, pieces, lambda a: self.call("cuMemHostUnregister", ctypes.c_void_p(a)))
        self.libc.munmap(at, size + 2 * MIB)
        return {"touch_s": round(touched, 4), "pin_s": round(pinned, 4), "unpin_s": round(undone, 4),
                "gbps": round(size / (touched + pinned) / 1e9, 3), "pin_gbps": round(size / pinned / 1e9, 3)}

    def copies(self, size, piece):
        """GB/s out, back, and both at once."""
        streams = [ctypes.c_void_p(), ctypes.c_void_p()]
        for s in streams:
            self.call("cuStreamCreate", ctypes.byref(s), 1)
        memory = []
        for _ in range(2):
            at, begin = self.host(size, HUGE)
            for a in range(begin, begin + size, piece):
                self.call("cuMemHostRegister_v2", ctypes.c_void_p(a), ctypes.c_size_t(piece), 0)
            device = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(size))
            self.call("cuMemsetD8_v2", device, 7, ctypes.c_size_t(size))
            memory.append((at, begin, device))
        found = {}
        for name, ways in (("out", [1]), ("back", [0]), ("both", [0, 1]), ("again_out", [1])):
            begun = now()
            for k in range(0, size, piece):
                for way in ways:
                    _, begin, device = memory[way]
                    if way:
                        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(begin + k), ctypes.c_uint64(device.value + k), ctypes.c_size_t(piece), streams[1])
                    else:
                        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(device.value + k), ctypes.c_void_p(begin + k), ctypes.c_size_t(piece), streams[0])
            self.call("cuCtxSynchronize")
            found[name] = round(len(ways) * size / (now() - begun) / 1e9, 2)
        return found


    def beside(self, seconds, slab):
        """Microseconds that a small request takes, alone and while another thread of the process gets host memory ready, as XSched does."""
        stream, device, stop = ctypes.c_void_p(), ctypes.c_uint64(), threading.Event()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(1 << 20))
        slabs = [0]

        def pin(touch):
            self.enter()
            while not stop.is_set():
                at, begin = self.host(slab, HUGE)
                if touch:
                    self.libc.madvise(begin, slab, POPULATE_WRITE)
                self.call("cuMemHostRegister_v2", ctypes.c_void_p(begin), ctypes.c_size_t(slab), 0)
                slabs[0] += 1
                time.sleep(0.01)
                self.call("cuMemHostUnregister", ctypes.c_void_p(begin))
                self.libc.munmap(at, slab + 2 * MIB)

        found = {}
        for name, touch in (("alone", None), ("pins", False), ("pins, touched before", True), ("alone again", None)):
            stop.clear()
            slabs[0], took, thread = 0, [], threading.Thread(target=pin, args=(touch,))
            if touch is not None:
                thread.start()
            end = now() + seconds
            while now() < end:
                begun = now()
                self.call("cuMemsetD8Async", device, 1, ctypes.c_size_t(1 << 20), stream)
                self.call("cuStreamSynchronize", stream)
                took.append((now() - begun) * 1e6)
            stop.set()
            if touch is not None:
                thread.join()
            took.sort()
            found[name] = {"requests": len(took), "slabs": slabs[0], "p50_us": round(took[len(took) // 2], 1),
                           "p99_us": round(took[len(took) * 99 // 100], 1), "p999_us": round(took[len(took) * 999 // 1000], 1),
                           "max_us": round(took[-1], 1)}
        return found


def first_line(path):
    try:
        with open(path) as f:
            return f.readline().strip()
    except OSError:
        return ""


def main():
    if sys.argv[1] == "beside":
        print(json.dumps(Driver().beside(float(sys.argv[2]), 64 * MIB), indent=1))
        return
    size, piece = int(sys.argv[1]) * MIB, int(sys.argv[2]) * MIB
    d = Driver()
    found = {"thp": first_line("/sys/kernel/mm/transparent_hugepage/enabled"), "host": first_line("/proc/meminfo"), "pin": {}}
    for name, advice, touch, threads in (
            ("small pages", NO_HUGE, 0, 1), ("small pages, touched by 8", NO_HUGE, 8, 1), ("huge pages", HUGE, 0, 1),
            ("huge pages, touched by 1", HUGE, 1, 1), ("huge pages, touched by 8", HUGE, 8, 1), ("huge pages, 2 threads", HUGE, 0, 2),
            ("huge pages, 4 threads", HUGE, 0, 4), ("huge pages, 8 threads", HUGE, 0, 8), ("huge pages, touched by 8, 4 threads", HUGE, 8, 4)):
        try:
            found["pin"][name] = d.pin(size, piece, advice, touch, threads)
        except RuntimeError as e:
            found["pin"][name] = str(e)
        print(name, found["pin"][name], file=sys.stderr, flush=True)
    found["copies"] = d.copies(size, piece)
    begun, at = now(), ctypes.c_void_p()
    d.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), 1)
    found["host_alloc_gbps"] = round(size / (now() - begun) / 1e9, 3)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
