#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
build app

# --local starts a private scheduler, so no daemon is needed.
"$XSCHED" run --virtual --local --policy HPF -- "$work/app"
