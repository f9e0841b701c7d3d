#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/../common/run.sh"
build app

# A private scheduler, for this program alone: no daemon needed.
"$XSCHED" run --virtual --local --policy HPF -- "$work/app"
