// SPDX-License-Identifier: Apache-2.0

// Light and dark: by the system's preference, or as chosen.

export type Theme = "auto" | "light" | "dark";

const key = "xsched.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme(): Theme {
  const value = localStorage.getItem(key);
  return value === "light" || value === "dark" ? value : "auto";
}

export function setTheme(value: Theme): void {
  localStorage.setItem(key, value);
  applyTheme();
}

// applyTheme sets the attribute that the style sheet reads.
export function applyTheme(): void {
  const value = theme();
  document.documentElement.dataset["theme"] = value === "auto" ? (dark.matches ? "dark" : "light") : value;
}

export function onPreference(changed: () => void): void {
  dark.addEventListener("change", changed);
}

// colours are those of the style sheet, for canvases.
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The number of colours of programs: --tenant-0 and so on.
export const tenantColours = 8;

// tenantColour gives neighbours in the list of PIDs different colours, and a program always the same.
export function tenantColour(index: number): string {
  return colour(`--tenant-${index % tenantColours}`);
}

const given = new Map<number, number>();

// indexOf numbers programs in the order in which they are drawn first.
export function indexOf(pid: number): number {
  let index = given.get(pid);
  if (index === undefined) given.set(pid, (index = given.size));
  return index;
}
