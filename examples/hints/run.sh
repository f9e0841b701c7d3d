#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
echo "the commands of the README, in a copy of this folder"
mkdir -p "$work/copy/bin" "$work/copy/examples/hints"
ln -s "$root/shim" "$work/copy/shim"
ln -s "$(realpath "$BUILD")" "$work/copy/build"
ln -s "$(realpath "$XSCHED")" "$work/copy/bin/xsched"
ln -s "$root/examples/common" "$work/copy/examples/common"
cp "$here/app.c" "$work/copy/examples/hints"
commands=$(sed -n 's/^    //p' "$here/README.md")
[ -n "$commands" ]
(cd "$work/copy/examples/hints" && bash -euc "$commands") | grep '^scheduled: yes'

build app
daemon
"$XSCHED" run --virtual --priority -10 -- "$BUILD/virtual/tenant" --name load --kernel-us 1000 < <(echo loop; sleep 2.5; echo quit) >/dev/null &
load=$!
sleep 0.3
out=$("$XSCHED" run --virtual -- "$work/app")
wait $load
echo "$out"
grep -q '^scheduled: yes' <<<"$out"
low=$(awk '/^low/ { print $9 }' <<<"$out") high=$(awk '/^high/ { print $9 }' <<<"$out")
awk -v low="$low" -v high="$high" 'BEGIN { if (high >= low) { print "the hint changed nothing"; exit 1 } }'

echo "without a daemon, the program runs and reports that it is not scheduled"
LD_LIBRARY_PATH=$BUILD:$BUILD/virtual LD_PRELOAD=$BUILD/virtual/libvgpu.so XSCHED_SOCKET=$work/none \
  XSCHED_VGPU_SOCKET=$XSCHED_DIR/vgpu.sock "$work/app" | tail -n 1 | grep '^scheduled: no'
