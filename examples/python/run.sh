#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
daemon
export PYTHONPATH=$root/python:$root/examples/common PYTHONDONTWRITEBYTECODE=1
"$XSCHED" run --virtual --priority -10 -- "$BUILD/virtual/tenant" --name load --kernel-us 1000 < <(echo loop; sleep 1.8; echo quit) >/dev/null &
load=$!
sleep 0.3
out=$("$XSCHED" run --virtual -- "${PYTHON:-python3}" "$here/serve.py")
wait $load
echo "$out"
grep -q '^scheduled: yes' <<<"$out"
