#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A new user's first minutes, without root: a daemon, a training job at a lower priority, a service, and
# the proof that the service is protected. The package is installed. TRAIN and SERVE are programs.
# --virtual stands for a GPU that this machine may not have.
set -eu

show() {
  echo "\$ $*"
  "$@"
}

echo "\$ xsched serve --virtual &"
xsched serve --virtual 2>"$HOME/serve.log" &
daemon=$!
until xsched version | grep -q '^daemon'; do sleep 0.2; done

echo "\$ xsched run --virtual --priority -10 -- $TRAIN &"
xsched run --virtual --priority -10 -- "$TRAIN" &
train=$!
echo "\$ xsched run --virtual -- $SERVE &"
xsched run --virtual -- "$SERVE" &
serve=$!

# The service is protected once the job has the short timeslice of a program that yields in mid-kernel.
until xsched list --json | grep -q '"slice_us": [1-9]'; do sleep 0.2; done
show xsched list
show xsched status
kill $train $serve
wait $train $serve || true
kill $daemon
wait $daemon
