#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
build app
daemon
"$XSCHED" run --virtual -- "$work/app"
