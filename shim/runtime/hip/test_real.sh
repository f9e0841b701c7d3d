#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Debian's real libamdhip64 5.2.3, which runs without a GPU: the same answers, the same addresses behind every name that
# is not hooked, and the same AMD_LOG lines with the shim and without. Run in the root of the repository after
# `make build/libxsched.so`. Exit 77: the library is not installed.
set -uo pipefail

shim=$PWD/build/libxsched.so
names=$PWD/shim/runtime/hip/testdata/names.txt
library=$(/sbin/ldconfig -p 2>/dev/null | sed -n 's/.*libamdhip64\.so\.5 .*=> //p' | head -n 1)
[ -n "$library" ] || { echo "no libamdhip64.so.5 here; apt-get install libamdhip64-5"; exit 77; }
[ -e "$shim" ] || { echo "FAIL real: $shim is missing: make build/libxsched.so"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Whatever the header of the table does not have in 5.2.3 is looked up at run time.
cc=(${CC:-gcc} -std=c11 -D_GNU_SOURCE -g -Wall -Wextra -Werror -Ishim -Ishim/include -Ibuild/gen -Ishim/runtime/hip)
test=(shim/runtime/hip/test_real.c build/gen/runtime/hip/test_invoke_gen.c -ldl)
"${cc[@]}" -o "$work/opened" "${test[@]}" || exit 1
"${cc[@]}" -DLINKED -o "$work/linked" "${test[@]}" "$library" -Wl,--allow-shlib-undefined || exit 1
readelf -V "$work/linked" | grep -q hip_4.2 || { echo "FAIL real: the program names no versions"; exit 1; }

export XSCHED_SOCKET=$work/no.sock AMD_LOG_LEVEL=4
# log FILE: without times, processes, threads and addresses
log() { sed -E 's/[0-9]+ us: *[0-9]+ *: \[tid:0x[0-9a-f]+\]/us/; s/0x[0-9a-f]+/ADDRESS/g' "$1"; }
failed=0
fail() {
  echo "FAIL $1"
  [ $# -lt 2 ] || head -n 20 "$2"
  failed=1
}
for way in opened linked; do
  timeout 60 "$work/$way" "$names" >"$work/plain.out" 2>"$work/plain.log" || { fail "$way without the shim"; continue; }
  LD_PRELOAD=$shim timeout 60 "$work/$way" "$names" >"$work/with.out" 2>"$work/with.log" || { fail "$way with the shim"; continue; }
  XSCHED_DISABLE=1 LD_PRELOAD=$shim timeout 60 "$work/$way" "$names" >"$work/off.out" 2>"$work/off.log" ||
    { fail "$way with the shim disabled"; continue; }

  # Hooked names are in the library and in us; all others are where they are.
  awk -F': ' 'NR == FNR { if ($2 ~ /\+/) at[$1] = $2; next }
    $2 == "hook" { if ($1 in at) { hooks++; print $1 ": " at[$1]; next } }
    { print } END { if (hooks < 100) print "only " hooks " hooks" }' "$work/plain.out" "$work/with.out" >"$work/expected.out"
  if diff "$work/plain.out" "$work/expected.out" >"$work/diff"; then echo "ok real $way: answers and addresses"; else fail "real $way: answers and addresses" "$work/diff"; fi
  if diff "$work/plain.out" "$work/off.out" >"$work/diff"; then echo "ok real $way: disabled"; else fail "real $way: disabled" "$work/diff"; fi
  for log in with off; do
    if [ "$(wc -l <"$work/plain.log")" -gt 500 ] && diff <(log "$work/plain.log") <(log "$work/$log.log") >"$work/diff"; then
      echo "ok real $way: log, $log"
    else
      fail "real $way: log, $log" "$work/diff"
    fi
  done
done
exit $failed
