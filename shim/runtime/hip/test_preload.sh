#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The built libxsched.so preloaded into HIP programs, on the null runtime under each of its names. Run in the
# root of the repository after `make build/libxsched.so null`. Prints "ok NAME" or "FAIL NAME" a test; exit 1 on a failure.
set -uo pipefail

shim=$PWD/build/libxsched.so
null=$PWD/build/null
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for need in "$shim" "$null/libamdhip64.so.6"; do
  [ -e "$need" ] || { echo "FAIL preload: $need is missing: make build/libxsched.so null"; exit 1; }
done

cc=(${CC:-gcc} -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror -Ishim -Ishim/include -Ibuild/gen -Ishim/runtime/hip)
test=(shim/runtime/hip/test_reach.c build/gen/runtime/hip/test_invoke_gen.c -ldl)
"${cc[@]}" -o "$work/reach" "${test[@]}" || exit 1
for version in 5 6 7; do
  mkdir "$work/$version"
  "${cc[@]}" -fPIC -shared -O1 -Wl,-soname,libamdhip64.so.$version -Wl,--version-script=build/gen/null/null_hip_gen.map \
    -o "$work/$version/libamdhip64.so.$version" shim/null/null_hip.c build/gen/null/null_hip_gen.c || exit 1
  "${cc[@]}" -DLINKED -o "$work/linked$version" "${test[@]}" "$work/$version/libamdhip64.so.$version" || exit 1
  "${cc[@]}" -DEXTENSION -fPIC -shared -o "$work/libextension$version.so" "${test[@]}" "$work/$version/libamdhip64.so.$version" || exit 1
done

export XSCHED_SOCKET=$work/no.sock
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
# run VERSION WITH COMMAND...: WITH is 1 (the shim), 0 (without it) or off (disabled)
run() {
  local version=$1 with=$2
  shift 2
  local set=("LD_LIBRARY_PATH=$work/$version:$work/7" "XSCHED_TEST_RUNTIME=libamdhip64.so.$version")
  case $with in
  1) env "${set[@]}" XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$@" ;;
  off) env "${set[@]}" XSCHED_TEST_SHIM=0 XSCHED_DISABLE=1 "LD_PRELOAD=$shim" "$@" ;;
  0) env "${set[@]}" XSCHED_TEST_SHIM=0 "$@" ;;
  esac
}
export -f run
export work shim

for version in 5 6 7; do
  for way in local global proc; do
    check "reach .so.$version $way" bash -c 'run "$@"' - $version 1 "$work/reach" $way
    check "reach .so.$version $way without the shim" bash -c 'run "$@"' - $version 0 "$work/reach" $way
    check "reach .so.$version $way disabled" bash -c 'run "$@"' - $version off "$work/reach" $way
  done
  # A program that was linked names version nodes; the shim's names have none.
  check "linked .so.$version" bash -c 'run "$@"' - $version 1 "$work/linked$version" linked
  check "linked .so.$version without the shim" bash -c 'run "$@"' - $version 0 "$work/linked$version" linked
  check "extension on .so.$version" bash -c 'run "$@"' - $version 1 "$work/reach" extension "$work/libextension$version.so"
  check "extension on .so.$version without the shim" bash -c 'run "$@"' - $version 0 "$work/reach" extension "$work/libextension$version.so"
done

# HIP by somebody else: it works, and nothing of ours asks it anything.
mkdir "$work/other"
"${cc[@]}" -fPIC -shared -O1 -Wl,-soname,libCHIP.so -Wl,--version-script=build/gen/null/null_hip_gen.map -o "$work/other/libCHIP.so" shim/null/null_hip.c build/gen/null/null_hip_gen.c || exit 1
"${cc[@]}" -DLINKED -o "$work/linkedother" "${test[@]}" "$work/other/libCHIP.so" || exit 1
check "another maker's runtime" env "LD_LIBRARY_PATH=$work/other" XSCHED_TEST_RUNTIME=libCHIP.so XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$work/linkedother" other
check "another maker's runtime without the shim" env "LD_LIBRARY_PATH=$work/other" XSCHED_TEST_RUNTIME=libCHIP.so XSCHED_TEST_SHIM=0 "$work/linkedother" other

# As wheels name it, by its path.
for name in libamdhip64.so libamdhip64-1a2b3c4d.so.6.2.41134; do
  cp "$work/6/libamdhip64.so.6" "$work/$name"
  check "named $name" env XSCHED_TEST_RUNTIME=$name "LD_LIBRARY_PATH=$work" XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$work/reach" local
done
cp "$work/6/libamdhip64.so.6" "$work/libother_runtime.so"
check "named by XSCHED_HIP_LIB" env XSCHED_HIP_LIB=libother_runtime.so XSCHED_TEST_RUNTIME=libother_runtime.so \
  "LD_LIBRARY_PATH=$work" XSCHED_TEST_SHIM=1 "LD_PRELOAD=$shim" "$work/reach" proc
for with in 1 0 off; do
  check "two copies, $with" bash -c 'run "$@"' - 6 $with "$work/reach" two "$work/7/libamdhip64.so.7"
done
mkdir "$work/old"
sed '/hipMemcpyBatchAsync;/d' build/gen/null/null_hip_gen.map >"$work/old.map"
"${cc[@]}" -fPIC -shared -O1 -fvisibility=hidden -Wl,-soname,libamdhip64.so.4 -Wl,--version-script="$work/old.map" \
  -o "$work/old/libamdhip64.so.4" shim/null/null_hip.c build/gen/null/null_hip_gen.c || exit 1
ln -s old "$work/4"
for first in 4 5 6; do
  for with in 1 0 off; do
    check "linked with a second copy, .so.$first first, $with" bash -c 'run "$@"' - $first $with \
      "$work/reach" foreign "$work/libextension7.so" libamdhip64.so.7
  done
done
check "relative path" bash -c 'cd "$work/6" && run 6 1 "$work/reach" moved ./libamdhip64.so.6'
exit $failed
