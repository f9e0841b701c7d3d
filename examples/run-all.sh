#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every example on the virtual GPU, each with a time limit; fails if one fails.
set -euo pipefail
cd "$(dirname "$0")"
export EXAMPLES_SHORT=1

failed=()
for run in */run.sh; do
  name=${run%/run.sh}
  [ "$name" = common ] && continue
  echo "== $name"
  timeout --kill-after=10 120 bash "$run" || failed+=("$name")
done
if [ ${#failed[@]} != 0 ]; then
  echo "examples: failed: ${failed[*]}"
  exit 1
fi
echo "examples: all ran"
