#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The built libxsched.so preloaded into programs, on the null driver. Run in the root of the repository after
# `make build/libxsched.so null`. Prints "ok NAME" or "FAIL NAME" a test; exit 1 on a failure.
set -uo pipefail

shim=$PWD/build/libxsched.so
null=$PWD/build/null
data=$PWD/shim/runtime/cuda/testdata/cuda13-getprocaddress.txt
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for need in "$shim" "$null/libcuda.so.1"; do
  [ -e "$need" ] || { echo "FAIL preload: $need is missing: make build/libxsched.so null"; exit 1; }
done

cc=(${CC:-gcc} -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror -Ishim -Ishim/include -Ibuild/gen -Ishim/runtime/cuda)
"${cc[@]}" -o "$work/reach" shim/runtime/cuda/test_reach.c -ldl || exit 1
"${cc[@]}" -DLINKED -o "$work/linked" shim/runtime/cuda/test_reach.c "$null/libcuda.so.1" -ldl || exit 1
"${cc[@]}" -fPIC -shared -o "$work/libunrelated.so" shim/runtime/cuda/test_unrelated.c -ldl || exit 1
"${cc[@]}" -fPIC -shared -DMEDDLER -o "$work/libmeddler.so" shim/runtime/cuda/test_unrelated.c -ldl || exit 1
printf 'int main(void) { return 0; }\n' >"$work/nothing.c"
"${cc[@]}" -o "$work/nothing" "$work/nothing.c" || exit 1

export LD_LIBRARY_PATH=$null XSCHED_SOCKET=$work/no.sock
failed=0
# check NAME COMMAND...
check() {
  local name=$1 output
  shift
  if output=$(timeout 60 "$@" 2>&1); then
    echo "ok $name"
  else
    echo "FAIL $name"
    echo "$output" | tail -n 20
    failed=1
  fi
}
with() { env XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$@"; }
without() { env XSCHED_TEST_SHIM=0 "$@"; }
disabled() { env XSCHED_TEST_SHIM=0 XSCHED_DISABLE=1 "LD_PRELOAD=$shim" "$@"; }
export -f with without disabled
export shim

for way in local global proc; do
  check "reach $way" bash -c 'with "$@"' - "$work/reach" $way
  check "reach $way without the shim" bash -c 'without "$@"' - "$work/reach" $way
  check "reach $way disabled" bash -c 'disabled "$@"' - "$work/reach" $way
done
check "reach linked" bash -c 'with "$@"' - "$work/linked" linked
check "reach linked without the shim" bash -c 'without "$@"' - "$work/linked" linked
check "internal addresses" bash -c 'XSN_INTERNAL=1 with "$@"' - "$work/reach" proc
check "replay" bash -c 'with "$@"' - "$work/reach" replay "$data"
check "replay of internal addresses" bash -c 'XSN_INTERNAL=1 with "$@"' - "$work/reach" replay "$data"
check "replay without the shim" bash -c 'without "$@"' - "$work/reach" replay "$data"

# A driver under another file name.
cp "$null/libcuda.so.1" "$work/libother_driver.so"
for way in local global proc; do
  check "another driver name, $way" env XSCHED_CUDA_LIB=libother_driver.so "LD_LIBRARY_PATH=$work" \
    XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$work/reach" $way
done

# Other preloaded libraries, before and behind us.
same() {
  UNRELATED_ASKS=1 LD_PRELOAD="$work/libunrelated.so" "$work/nothing" >"$work/alone" || return 1
  UNRELATED_ASKS=1 LD_PRELOAD="$work/libunrelated.so:$shim" "$work/nothing" >"$work/before" || return 1
  UNRELATED_ASKS=1 LD_PRELOAD="$shim:$work/libunrelated.so" "$work/nothing" >"$work/behind" || return 1
  [ "$(wc -l <"$work/alone")" -ge 45 ] && diff "$work/alone" "$work/before" && diff "$work/alone" "$work/behind"
}
export -f same
export work
check "unrelated library" bash -c same
# One that takes dlsym for itself stands between the program and us when it comes first: nothing may loop.
check "meddler before us" env "LD_PRELOAD=$work/libmeddler.so:$shim" "$work/linked" counts
check "meddler before us, dlopen" env "LD_PRELOAD=$work/libmeddler.so:$shim" "$work/reach" proc
check "meddler behind us, linked" env "LD_PRELOAD=$shim:$work/libmeddler.so" "$work/linked" counts
check "meddler behind us" env XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim:$work/libmeddler.so" "$work/reach" proc

# A program without a GPU gets no thread and no socket; and the exports are the intended ones.
check "plain program" env "LD_PRELOAD=$shim" "$work/nothing"
check "exports and glibc" sh shim/core/check_abi.sh "$shim"
check "nothing locked on the way of a launch" sh shim/core/check_launch.sh "$shim"
exit $failed
