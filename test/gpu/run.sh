#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh OUT_DIR [suite...] [--quick] [--budget SECONDS] [--virtual]
#
# Measures XSched on the GPU of this machine. Needs bin/xsched and build/virtual/tenant (from `make build`), nvcc, gcc and
# python3 with PyTorch. Needs no network and no Go. Writes results.json, report.md and logs.tar.gz to OUT_DIR.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -ge 1 ] || { sed -n '3,8p' "$0" >&2; exit 64; }
for need in "$root/bin/xsched" "$root/build/virtual/tenant"; do
  [ -x "$need" ] || { echo "run.sh: $need is missing; run \`make build\` and copy it here" >&2; exit 1; }
done
out=$1
mkdir -p "$out" || exit 1
helpers=$(mktemp -d "${TMPDIR:-/tmp}/xsched-helpers.XXXXXX") || exit 1
trap 'rm -rf "$helpers"' EXIT
export PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
case " $* " in
  *" --virtual "*) ;;
  *) "$here/cuda/build.sh" "$helpers" > "$out/build.log" 2>&1; [ -s "$out/build.log" ] || rm -f "$out/build.log"
     export XSCHED_GPU_HELPERS=$helpers ;;
esac
# Overall time limit: every child of suite.py dies with it.
timeout -s KILL "${XSCHED_GPU_LIMIT:-1500}" python3 "$here/suite.py" "$@"
