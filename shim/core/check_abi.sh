#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Reads a built libxsched.so: check_abi.sh LIBRARY. Fails if it needs a symbol newer than GLIBC_2.28, if
# what glibc moved in 2.34 could not be found on an older one, or if it exports anything not intended.
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
exported=$(readelf --dyn-syms -W "$library" |
  awk '$7 != "UND" && $7 != "Ndx" && ($5 == "GLOBAL" || $5 == "WEAK") { sub(/@.*/, "", $8); print $8 }' |
  grep -v -x -e ioctl -e dlsym -e dlvsym -e 'cu[A-Z].*' -e 'hip[A-Z].*' -e '_Z24hip.*' -e 'xs_.*' -e 'X[A-Z].*' \
    -e 'Hw[A-Z].*' -e 'CudaQueue.*' || true)
[ -z "$exported" ] || fail "$library exports $exported"
echo "ok abi"
