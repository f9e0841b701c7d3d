#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The built libxsched.so in programs that are hard to be a guest of: built with sanitizers, forking, loading
# and unloading the library late. Run in the root of the repository after `make build/libxsched.so null`.
# Prints "ok NAME" or "FAIL NAME" for each test; exit 1 on a failure.
set -uo pipefail

shim=$PWD/build/libxsched.so
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for need in "$shim" "$PWD/build/null/libcuda.so.1"; do
  [ -e "$need" ] || { echo "FAIL programs: $need is missing: make build/libxsched.so null"; exit 1; }
done
export LD_LIBRARY_PATH=$PWD/build/null XSCHED_SOCKET=$work/no.sock
export ASAN_OPTIONS=detect_leaks=0:exitcode=99 TSAN_OPTIONS=exitcode=98

failed=0
# expect CODE NAME COMMAND...: a sanitizer's report ends a program with its own exit code
expect() {
  local code=$1 name=$2 output
  shift 2
  output=$(timeout 60 "$@" 2>&1)
  local got=$?
  if [ $got = "$code" ]; then
    echo "ok $name"
  else
    echo "FAIL $name: exit $got, not $code"
    echo "$output" | tail -n 20
    failed=1
  fi
}

flags=(-std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror)
gcc "${flags[@]}" -o "$work/plain" shim/core/test_program.c -ldl -lpthread || exit 1
expect 0 "unloading the shim" "$work/plain" close "$shim"
# 22 pages when this was written; 126 when a child cleared whole tables.
expect 0 "pages copied by a child" env "LD_PRELOAD=$shim" "$work/plain" fork 40

# TSan can't place its shadow where a kernel randomises more than 28 bits of mmap addresses.
fixed=()
if command -v setarch >/dev/null && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

# sanitized NAME BUG CODE PRELOAD-FIRST PROGRAM: the program runs, and the sanitizer still finds a bug
sanitized() {
  local name=$1 bug=$2 code=$3 first=$4 program=$5
  for disable in 0 1; do
    local run=("${fixed[@]}" env "LD_PRELOAD=$first$shim" XSCHED_DISABLE=$disable "$program")
    expect 0 "$name launches, XSCHED_DISABLE=$disable" "${run[@]}" launch
    expect "$code" "$name finds a bug, XSCHED_DISABLE=$disable" "${run[@]}" "$bug"
  done
}

for compiler in gcc clang clang-14; do
  command -v $compiler >/dev/null || continue
  # ASan refuses to start behind another library, so gcc's shared runtime has to be preloaded, too.
  first= static=()
  if [ $compiler = gcc ]; then
    first=$(gcc -print-file-name=libasan.so):
    static=(-static-libasan)
  fi
  build=($compiler "${flags[@]}" shim/core/test_program.c)
  if "${build[@]}" -fsanitize=address -o "$work/asan" -ldl -lpthread 2>"$work/log"; then
    sanitized "$compiler asan" overrun 99 "$first" "$work/asan"
  else
    echo "skipped $compiler asan: $(tail -n 1 "$work/log")"
  fi
  if [ $compiler = gcc ] && "${build[@]}" -fsanitize=address "${static[@]}" -o "$work/asan" -ldl -lpthread; then
    sanitized "$compiler static asan" overrun 99 "" "$work/asan"
  fi
  if "${build[@]}" -fsanitize=thread -o "$work/tsan" -ldl -lpthread 2>"$work/log"; then
    sanitized "$compiler tsan" race 98 "" "$work/tsan"
  else
    echo "skipped $compiler tsan: $(tail -n 1 "$work/log")"
  fi
done
exit $failed
