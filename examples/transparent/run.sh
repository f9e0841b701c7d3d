#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
plain app
daemon

echo "native: the hardware time-slices both programs"
"$XSCHED" mode off >/dev/null
"$XSCHED" run --virtual --priority -10 -- "$work/app" low 500 150 0 &
low=$!
"$XSCHED" run --virtual -- "$work/app" high 100 30 10
wait $low

echo "scheduled: the high program preempts the low one"
"$XSCHED" mode live >/dev/null
"$XSCHED" run --virtual --priority -10 -- "$work/app" low 500 150 0 &
low=$!
"$XSCHED" run --virtual -- "$work/app" high 100 30 10
wait $low
