#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes a log with tools/amdloggen and compares `xsched amdlog` with grep and
# awk. Counts must be equal; amdlog must read 1,500,000 lines per second, take at
# most three times as long as grep, and stay below 200 MB.
#
#   amdlog-check.sh [small|a|b]...     default: small. a has 6.16 million lines, b 13.12 million (2 GB of disk)
#
# XSCHED names the binary to check; by default one is built. The case small is
# too short to check speed and memory.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/amdloggen" ./tools/amdloggen
xsched=${XSCHED:-$work/xsched}
[ -n "${XSCHED:-}" ] || CGO_ENABLED=0 go build -o "$work/xsched" ./cmd/xsched

failed=0
# same WHAT GOT WANT
same() {
  if [ "$2" = "$3" ]; then printf '  ok    %-34s %s\n' "$1" "$2"; else printf '  FAIL  %-34s %s, want %s\n' "$1" "$2" "$3"; failed=1; fi
}
# below WHAT GOT LIMIT UNIT
below() {
  if awk -v a="$2" -v b="$3" 'BEGIN { exit !(a <= b) }'; then printf '  ok    %-34s %s %s (limit %s)\n' "$1" "$2" "$4" "$3"; else printf '  FAIL  %-34s %s %s, limit %s\n' "$1" "$2" "$4" "$3"; failed=1; fi
}
# ours KEY: the first number with this key in amdlog's JSON
ours() { awk -v key="\"$1\":" '$1 == key { gsub(",", "", $2); print $2; exit }' "$work/ours.json"; }
expected() { awk -v key="\"$1\":" '$1 == key { gsub(",", "", $2); print $2; exit }' "$work/expect.json"; }
now() { date +%s.%N; }
# least BEST START: the time since START if it is less than BEST
least() { awk -v best="$1" -v a="$2" -v b="$(now)" 'BEGIN { print best < b - a ? best : b - a }'; }

# judge: classify the lines with regular expressions only. NUL bytes are
# replaced by \001, because not every awk can read them.
judge() {
  tr '\000' '\001' <"$1" | awk '
    { whole = ($0 ~ /^:[0-9]:[^:]*:[0-9]+ *: *[0-9]+d? us: /) }
    /\001/                                   { damaged++; next }
    !whole && /[^:]:[0-9]:[a-z_]+\.cpp *:[0-9]+ *: [0-9]+ us: / { glued++; next }
    !whole && /^:[0-9]:/                     { damaged++; if ($0 ~ /^:[0-9]:[^:]*(:[0-9]* *(: *[0-9]*)?)?$/) cut++; next }
    !whole && /Dispatch Header/              { damaged++; next }
    !whole                                   { text++; next }
    /.:[0-9]:[a-z_]+\.cpp *:[0-9]+ *: [0-9]+ us: / { glued++; next }
    /[SH]Wq=/ && /Header/ && !/wptr=[0-9]+$/ { cut++ }
    /\] SWq=/ && !/Header/                   { cut++ }
    END { print damaged + 0, cut + 0, glued + 0, text + 0 }'
}

for case in "${@:-small}"; do
  echo "case $case"
  "$work/amdloggen" -case "$case" -o "$work/log" -expect "$work/expect.json"
  cat "$work/log" >/dev/null # both find it in memory
  grep_s=1e9 ours_s=1e9 peak=0
  for _ in 1 2 3; do # in turns, the best of each: other programs run too
    start=$(now)
    kernels=$(grep -c 'Dispatch Header' "$work/log")
    grep_s=$(least "$grep_s" "$start")
    start=$(now)
    "$xsched" amdlog --json "$work/log" >"$work/ours.json" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do # VmHWM is the peak so far, so sampling it is enough
      kb=$(awk '/^VmHWM:/ { print $2 }' "/proc/$pid/status" 2>/dev/null || true)
      [ "${kb:-0}" -le "$peak" ] || peak=$kb
      sleep 0.02
    done
    wait "$pid"
    ours_s=$(least "$ours_s" "$start")
  done
  lines=$(wc -l <"$work/log")
  read -r damaged cut glued text < <(judge "$work/log")

  same "kernels, grep -c" "$(ours kernels)" "$kernels"
  same "kernels, as generated" "$(ours kernels)" "$(expected kernels)"
  same "commands, grep -o" "$(ours commands)" "$(grep -ao 'Command (KernelExecution) enqueued' "$work/log" | wc -l)"
  same "lines, wc -l" "$(ours total)" "$lines"
  same "damaged lines, awk" "$(ours damaged)" "$damaged"
  same "cut lines, awk" "$(ours cut)" "$cut"
  same "glued lines, awk" "$(ours glued)" "$glued"
  same "text, awk" "$(ours text)" "$text"
  same "damaged lines, as generated" "$(ours damaged)" "$(expected damaged)"
  same "cut lines, as generated" "$(ours cut)" "$(expected cut)"
  same "orphans, as generated" "$(ours orphans)" "$(expected orphans)"
  if [ "$case" != small ]; then
    below "memory" "$((peak / 1024))" 200 MB
    below "time" "$ours_s" "$(awk -v n="$lines" 'BEGIN { print n / 1500000 }')" s
    below "time over grep's ($grep_s s)" "$(awk -v a="$ours_s" -v b="$grep_s" 'BEGIN { print a / b }')" 3 times
    awk -v n="$lines" -v s="$ours_s" 'BEGIN { printf "        %.1f million lines a second\n", n / s / 1e6 }'
  fi
done
exit $failed
