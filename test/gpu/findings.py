# SPDX-License-Identifier: Apache-2.0
"""Sections of the page that explain the figures."""
from shown import rows_of
from tables import number

POWER_CAP = 4  # NVML's throttle reason "software power cap"


def switch_rows(merged):
    return [[r["job"], "-" if r.get("sm_mhz") is None else "%d MHz" % r["sm_mhz"], "-" if r.get("power_w") is None else "%d W" % r["power_w"],
             "yes" if int(r.get("throttled", "0"), 16) & POWER_CAP else "no", number(r.get("switch_ms"), 2), number(r.get("step_slower_ms"), 2), r["suspends"]]
            for r in rows_of(merged, "switch")]
