// SPDX-License-Identifier: Apache-2.0

import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, count, duration, memoryText, modeText, none, percent, plain, round, sensorsText, untimed } from "../src/format";

test("durations use the unit that keeps them short", () => {
  const cases: [number | undefined, string][] = [
    [undefined, none], [NaN, none], [0, none], [-1, none], [Infinity, none],
    [0.4, "0.4 µs"], [9.94, "9.9 µs"], [9.96, "10 µs"], [999.4, "999 µs"], [999.6, "1.00 ms"], [3123, "3.12 ms"], [12_345, "12.3 ms"],
    [123_456, "123 ms"], [999_499, "999 ms"], [999_600, "1.00 s"], [61e6, "61.0 s"], [300e6, "5 min"], [7200e6, "2 h"],
  ];
  for (const [us, want] of cases) assert.equal(duration(us), want, String(us));
});

test("bounds have no zeros", () => {
  assert.deepEqual([1, 500, 1000, 20_000, 1e6, 5e6].map(round), ["1 µs", "500 µs", "1 ms", "20 ms", "1 s", "5 s"]);
});

test("a ratio below one never becomes 100 %", () => {
  const cases: [number | undefined, string][] = [
    [undefined, none], [0, "0 %"], [1, "100 %"], [0.005, "0.5 %"], [0.0314, "3.1 %"], [0.84, "84 %"], [0.992, "99.2 %"], [0.9996, "99.96 %"], [0.999999, "99.99 %"], [1.5, "150.0 %"], [-0.5, "-50.0 %"],
  ];
  for (const [ratio, want] of cases) assert.equal(percent(ratio), want, String(ratio));
});

test("counts have separators", () => {
  assert.equal(count(0), "0");
  assert.equal(count(999), "999");
  assert.equal(count(1234567), "1,234,567");
  assert.equal(count(undefined), none);
});

test("a mode has its level, if there is one", () => {
  assert.equal(modeText("level", 2), "level 2");
  assert.equal(modeText("live"), "live");
  assert.equal(modeText("off", 0), "off");
});

test("a name can't reorder or hide the text around it", () => {
  assert.equal(plain("a\u202eb\u0000\nc\u2066\u200b"), "a\ufffdb\ufffd\ufffdc\ufffd\ufffd");
  assert.equal(plain("训练.py – é"), "训练.py – é");
});

test("an empty distribution does not contradict the number of preemptions", () => {
  assert.equal(untimed(undefined), "Nothing was preempted yet.");
  assert.equal(untimed({ preemptions: 0, yields: 0 }), "Nothing was preempted yet.");
  assert.ok(/^No duration: .* \(539 times\)\.$/.test(untimed({ preemptions: 0, yields: 539 })));
  assert.ok(untimed({ preemptions: 2, yields: 1 }).includes("(3 times)"));
});

test("memory tells what can leave, and why the rest can't", () => {
  assert.deepEqual([0, 512, 2 ** 20, 61.5 * 2 ** 30, 2 ** 50].map(bytes), ["0 B", "512 B", "1 MiB", "61.5 GiB", "1024 TiB"]);
  const gib = 2 ** 30;
  const memory = {
    device: "0000:01:00.0", used_bytes: 64 * gib, quota_bytes: 80 * gib, refused: 0, movable_bytes: 61 * gib, away_bytes: 41 * gib, pinned_bytes: 61 * gib,
    fixed: { small: gib, pool: 2 * gib }, residency: "away", evicted: true, moves_out: 1, moves_back: 0, bytes_out: 41 * gib, bytes_back: 0,
  };
  assert.equal(memoryText(memory), "64 GiB of 80 GiB, movable 61 GiB (rest: 2 GiB pool, 1 GiB small), 41 GiB away by hand");
  assert.equal(memoryText({ ...memory, quota_bytes: 0, movable_bytes: 0, away_bytes: 0, evicted: false }), "64 GiB");
});

test("sensors name what is known, and nothing that is not", () => {
  assert.equal(sensorsText({}), "");
  assert.equal(sensorsText({ unknown: "GPU is lost", xids: [{ code: 79, count: 1, last_unix_ns: 0 }] }), "sensors unknown: GPU is lost");
  assert.equal(sensorsText({ power_watts: 0, temperature_celsius: 61, ecc_uncorrected: 0 }), "0 W, 61 °C");
  assert.equal(
    sensorsText({ memory_used_bytes: 2 ** 30, memory_total_bytes: 2 ** 31, memory_low: true, power_watts: 310.2, power_limit_watts: 700, clock_hertz: 1980e6, throttled: ["software_power_cap"], ecc_uncorrected: 2, xids: [{ code: 31, count: 2, last_unix_ns: 0 }] }),
    `memory ${bytes(2 ** 30)} of ${bytes(2 ** 31)}, 310 W of 700 W, 1980 MHz, throttled: software power cap, 2 uncorrected ECC errors, Xid 31, almost full: the next allocation may fail`,
  );
});
