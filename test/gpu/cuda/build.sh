#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh OUT_DIR: builds the helpers into OUT_DIR. What can't be built is left out; the suites that need it say so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
mkdir -p "$out"
gcc -O2 -Wall -Wextra -o "$out/rmchurn" "$here/rmchurn.c" || echo "rmchurn: not built"
gcc -O2 -Wall -Wextra -shared -fPIC -o "$out/rmtrace.so" "$here/rmtrace.c" -ldl || echo "rmtrace: not built"
for name in launches uploads stopcost; do
  gcc -O2 -Wall -Wextra -rdynamic -o "$out/$name" "$here/$name.c" -ldl -lpthread || echo "$name: not built"
done
pids=()
for name in overhead correct streams truth; do
  ( timeout -s KILL 150 "$nvcc" -O2 -std=c++17 -arch=sm_90 -o "$out/$name.part" "$here/$name.cu" \
      && mv "$out/$name.part" "$out/$name" || echo "$name: not built" ) &
  pids+=($!)
done
wait "${pids[@]}"
