# SPDX-License-Identifier: Apache-2.0
#
# Sourced by each example's run.sh. Every run has its own daemon and virtual GPU and removes its
# files at exit.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
root=$(cd "$here/../.." && pwd)
XSCHED=${XSCHED:-$root/bin/xsched}
BUILD=${BUILD:-$root/build}
CC=${CC:-gcc}
[ -x "$XSCHED" ] || { echo "$XSCHED is not built; run \`make build\`" >&2; exit 1; }

work=$(mktemp -d /tmp/xse.XXXXXX)
serve_pid=
clean() {
  if [ -n "$serve_pid" ]; then
    kill "$serve_pid" 2>/dev/null || true
    wait "$serve_pid" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap clean EXIT

# build NAME: compile the example against libxsched; at run time, `xsched run` supplies the library.
build() {
  "$CC" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I"$root/shim/include" -I"$here/../common" \
    -o "$work/$1" "$here/$1.c" -L"$BUILD" -lxsched "$BUILD/virtual/libcuda.so.1" -lpthread
}
# plain NAME: the same without libxsched.
plain() {
  "$CC" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I"$here/../common" -o "$work/$1" "$here/$1.c" \
    "$BUILD/virtual/libcuda.so.1" -lpthread
}

# daemon: start a daemon with a virtual GPU and wait until it answers.
daemon() {
  export XSCHED_DIR=$work/d
  "$XSCHED" serve --virtual --log-level warn &
  serve_pid=$!
  for _ in $(seq 100); do
    [ -S "$XSCHED_DIR/control.sock" ] && "$XSCHED" list >/dev/null 2>&1 && return
    sleep 0.05
  done
  echo "the daemon did not start" >&2
  exit 1
}
