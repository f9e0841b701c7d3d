# SPDX-License-Identifier: Apache-2.0
"""A small inference server that sets its hints and marks its requests."""

import sys
import time

import xsched
from gpu import Gpu


@xsched.request("generate")
def generate(gpu: Gpu) -> None:
    for _ in range(5):
        gpu.launch(100)
    gpu.wait()


def main() -> int:
    gpu = Gpu()
    xsched.hint(slo_ms=10)
    times = []
    for _ in range(60):
        start = time.monotonic()
        generate(gpu)
        times.append((time.monotonic() - start) * 1e3)
        time.sleep(0.005)
    times.sort()
    print(f"high   {len(times)} requests, latency P50 {times[30]:.2f} ms, P99 {times[59]:.2f} ms")
    for queue in xsched.queues():
        print(f"queue {queue.index} on {queue.device}: {queue.submitted} launches")
    print("scheduled:", "yes" if xsched.available() else "no")
    return 0


if __name__ == "__main__":
    sys.exit(main())
