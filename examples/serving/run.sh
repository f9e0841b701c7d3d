#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [--short] [--rounds N] [--svg FILE] ...: the whole comparison; --help lists the options.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" -B "$here/run.py" ${EXAMPLES_SHORT:+--short} "$@"
