# SPDX-License-Identifier: Apache-2.0
"""What the driver says of the GPU: clock, power and memory by NVML, errors (Xid) by the kernel log."""
import ctypes
import subprocess


class Nvml:
    """Memory usage and clocks of the GPU through NVML: nvidia-smi is too slow to time them."""

    class _Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.lib = None
        try:
            lib = ctypes.CDLL("libnvidia-ml.so.1")
            self.device = ctypes.c_void_p()
            if lib.nvmlInit_v2() == 0 and lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0:
                self.lib = lib
        except OSError:
            pass

    def clocks(self):
        """(SM clock in MHz, power in W, throttle reasons as NVML's bits); None without NVML."""
        mhz, milliwatts, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        if not self.lib or self.lib.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(mhz)) or \
                self.lib.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(milliwatts)) or \
                self.lib.nvmlDeviceGetCurrentClocksThrottleReasons(self.device, ctypes.byref(reasons)):
            return None
        return mhz.value, milliwatts.value / 1000, reasons.value

    def used_mib(self):
        if self.lib:
            m = self._Memory()
            if self.lib.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(m)) == 0:
                return m.used / 2 ** 20
        try:
            r = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True, timeout=10)
            return float(r.stdout.split()[0])
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
            return None


def xids():
    """GPU errors (Xid) in the kernel log; None if it is not readable."""
    try:
        r = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if r.returncode != 0:
        return None
    return [line for line in r.stdout.splitlines() if "Xid" in line]
