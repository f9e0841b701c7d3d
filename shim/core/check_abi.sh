#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Reads a built libxsched.so: check_abi.sh LIBRARY. Fails if it needs a symbol newer than GLIBC_2.28, if
# what glibc moved in 2.34 could not be found on an older one, or if it exports a name that no exports.txt lists.
# Run in the root of the repository.
set -eu
library=$1
fail() { echo "FAIL abi: $1"; exit 1; }

newest=$(readelf -V -W "$library" | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/GLIBC_//' | sort -u -V | tail -n 1)
[ "$(printf '%s\n2.28\n' "$newest" | sort -V | tail -n 1)" = 2.28 ] ||
  fail "$library needs GLIBC_$newest; nothing newer than 2.28 is allowed"
for needed in libdl.so.2 libpthread.so.0; do
  readelf -d -W "$library" | grep -q "NEEDED.*\[$needed\]" || fail "$library does not need $needed"
done
others=$(readelf -d -W "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
  grep -v -x -e libc.so.6 -e libdl.so.2 -e libpthread.so.0 -e 'ld-linux.*' || true)
[ -z "$others" ] || fail "$library needs more than libc: $others"
# What each part of the library may export is in its exports.txt, as shell patterns.
intended=$(cat shim/*/exports.txt shim/*/*/exports.txt | sed 's/#.*//; /^[[:space:]]*$/d')
set -f
readelf --dyn-syms -W "$library" |
  awk '$7 != "UND" && $7 != "Ndx" && ($5 == "GLOBAL" || $5 == "WEAK") { sub(/@.*/, "", $8); print $8 }' |
  while read -r symbol; do
    known=
    for pattern in $intended; do
      # shellcheck disable=SC2254 # patterns are meant
      case $symbol in $pattern) known=1 ;; esac
    done
    [ -n "$known" ] || fail "$library exports $symbol"
  done
echo "ok abi"
