#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A new user's first minutes, without root: a training job at a lower priority, a service, the proof
# that the service is protected, and who preempted whom. The package is installed and the daemon runs.
# TRAIN and SERVE are programs, BEGAN is when the newcomer began, in milliseconds of the Unix clock.
# --virtual stands for a GPU that this machine may not have.
set -eu

say() {
  passed=$(($(date +%s%N) / 1000000 - BEGAN))
  printf '[%3d.%01d s] $ %s\n' $((passed / 1000)) $((passed % 1000 / 100)) "$*"
}

show() {
  say "$@"
  "$@"
}

say xsched run --virtual --priority -10 -- "$TRAIN" '&'
xsched run --virtual --priority -10 -- "$TRAIN" &
train=$!
say xsched run --virtual -- "$SERVE" '&'
xsched run --virtual -- "$SERVE" &
serve=$!

# The service is protected once the job has the short timeslice of a program that yields in mid-kernel,
# and its journal names the service as the cause.
until xsched list --json | grep -q '"slice_us": [1-9]'; do sleep 0.2; done
until xsched logs --kind preemption | grep -q "$(basename "$SERVE") .* $(basename "$TRAIN") "; do sleep 0.2; done
show xsched list
show xsched status
show xsched top --once
show xsched logs --kind preemption --lines 2
say kill %1 %2
kill $train $serve
wait $train $serve || true
