#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Reads a built libxsched.so: check_launch.sh LIBRARY. Fails if the entry point of a launch has a locked
# instruction or a fence of its own: behind the driver's write to the device either waits until that has arrived,
# which no test without a device would show. What other threads than a stream's owner need is called, not inlined.
set -eu
library=$1
fail() { echo "FAIL launch: $1"; exit 1; }

readelf -h -W "$library" | grep -q 'Machine:.*X86-64' || { echo "ok launch (not x86-64: not looked at)"; exit 0; }
for symbol in cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuGraphLaunch \
  xsi_cu_begin xsi_begin_work xsi_end_copy hipLaunchKernel hipLaunchKernel_spt hipModuleLaunchKernel \
  hipLaunchKernelExC hipGraphLaunch xsi_hip_begin clEnqueueNDRangeKernel; do
  code=$(objdump -d --no-show-raw-insn --disassemble="$symbol" "$library" | grep '^ ' || true)
  [ "$(echo "$code" | wc -l)" -ge 10 ] || fail "$library: no code found for $symbol"
  # An exchange with memory is locked without saying so.
  slow=$(echo "$code" | grep -E '[[:space:]](lock|mfence|lfence|sfence|cpuid)([[:space:]]|$)|[[:space:]]xchg[a-z]*[[:space:]].*\(' || true)
  [ -z "$slow" ] || fail "$library: $symbol has $slow"
done
echo "ok launch"
