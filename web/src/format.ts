// SPDX-License-Identifier: Apache-2.0

// Text of numbers and names. All functions are pure.

import type { Memory, Sensors } from "./api_gen";

export const none = "–";

// digits shortens a number to three significant digits, without an exponent.
function digits(value: number): string {
  const whole = Math.abs(value);
  return value.toFixed(whole < 9.995 ? 2 : whole < 99.95 ? 1 : 0);
}

// duration writes microseconds in the unit that keeps the number short.
export function duration(us: number | undefined): string {
  if (us === undefined || !Number.isFinite(us) || us <= 0) return none;
  if (us < 999.5) return `${us < 9.95 ? us.toFixed(1) : us.toFixed(0)} µs`;
  if (us < 999_500) return `${digits(us / 1e3)} ms`;
  if (us < 120e6) return `${digits(us / 1e6)} s`;
  if (us < 7200e6) return `${(us / 60e6).toFixed(0)} min`;
  return `${(us / 3600e6).toFixed(0)} h`;
}

// round writes whole microseconds, such as the bound of a histogram's bar, without zeros.
export const round = (us: number): string => (us < 1e3 ? `${us} µs` : us < 1e6 ? `${us / 1e3} ms` : `${us / 1e6} s`);

// percent writes a ratio. What is not quite everything never becomes 100 %.
export function percent(ratio: number | undefined): string {
  if (ratio === undefined || !Number.isFinite(ratio)) return none;
  const value = ratio * 100;
  if (value === 0 || value === 100) return `${value} %`;
  if (value > 99.9 && value < 100) return `${(Math.floor(value * 100) / 100).toFixed(2)} %`;
  return `${value.toFixed(value < 10 || value > 99 ? 1 : 0)} %`;
}

export function count(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return none;
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

// modeText writes a mode with its level, if it has one, as control.ModeText does.
export function modeText(mode: string, level?: number): string {
  return level ? `${mode} ${level}` : mode;
}

// untimed says why a distribution of preemptions is empty. Only operations on hardware queues have a
// duration: programs also yield to longer timeslices, and are held at launches.
export function untimed(stats: { preemptions: number; yields: number } | undefined): string {
  const all = (stats?.preemptions ?? 0) + (stats?.yields ?? 0);
  return all === 0 ? "Nothing was preempted yet." : `No duration: the programs yielded to longer timeslices or were held at launches (${count(all)} times).`;
}

const two = (n: number): string => n.toString().padStart(2, "0");

// clock writes the local time of day of Unix nanoseconds.
export function clock(ns: number): string {
  const at = new Date(ns / 1e6);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// plain replaces characters that could hide or reorder the text around a foreign name: controls,
// directional overrides and isolates, line separators, invisible characters.
export function plain(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");
}

// bytes has three digits and a unit.
export function bytes(n: number): string {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]] as const) {
    if (n >= size) return `${Number((n / size).toPrecision(n / size >= 1000 ? 4 : 3))} ${unit}`;
  }
  return `${n} B`;
}

// memoryText tells what a program has on a GPU, how much of it can leave, and why the rest can't.
export function memoryText(m: Memory): string {
  let text = bytes(m.used_bytes) + (m.quota_bytes > 0 ? ` of ${bytes(m.quota_bytes)}` : "");
  if (m.movable_bytes > 0) text += `, movable ${bytes(m.movable_bytes)}`;
  const fixed = Object.entries(m.fixed ?? {}).sort(([, a], [, b]) => b - a).map(([why, n]) => `${bytes(n)} ${why}`);
  if (m.movable_bytes > 0 && fixed.length > 0) text += ` (rest: ${fixed.join(", ")})`;
  if (m.away_bytes > 0) text += `, ${bytes(m.away_bytes)} away${m.evicted ? " by hand" : ""}`;
  if (m.evict_failed) text += `, not evicted: ${plain(m.evict_failed)}`;
  return text;
}

// sensorsText describes the hardware of a GPU, as control.Sensors.Text does.
export function sensorsText(s: Sensors): string {
  if (s.unknown) return `sensors unknown: ${s.unknown}`;
  const parts: string[] = [];
  if (s.memory_used_bytes !== undefined && s.memory_total_bytes !== undefined) parts.push(`memory ${bytes(s.memory_used_bytes)} of ${bytes(s.memory_total_bytes)}`);
  if (s.power_watts !== undefined) parts.push(`${s.power_watts.toFixed(0)} W${s.power_limit_watts === undefined ? "" : ` of ${s.power_limit_watts.toFixed(0)} W`}`);
  if (s.temperature_celsius !== undefined) parts.push(`${s.temperature_celsius.toFixed(0)} °C`);
  if (s.clock_hertz !== undefined) parts.push(`${(s.clock_hertz / 1e6).toFixed(0)} MHz`);
  if (s.throttled?.length) parts.push(`throttled: ${s.throttled.join(", ").replaceAll("_", " ")}`);
  if (s.ecc_uncorrected) parts.push(`${count(s.ecc_uncorrected)} uncorrected ECC errors`);
  for (const x of s.xids ?? []) parts.push(`Xid ${x.code}`);
  if (s.memory_low) parts.push("almost full: the next allocation may fail");
  return parts.join(", ");
}
