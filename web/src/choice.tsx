// SPDX-License-Identifier: Apache-2.0

interface Props<Value> {
  legend: string;
  options: readonly [Value, string][];
  value: Value;
  set: (value: Value) => void;
}

// Choice is a row of radio buttons.
export function Choice<Value extends string | number>({ legend, options, value, set }: Props<Value>) {
  return (
    <fieldset class="choice">
      <legend>{legend}</legend>
      {options.map(([v, text]) => <label key={v}><input type="radio" name={legend} checked={v === value} onChange={() => set(v)} />{text}</label>)}
    </fieldset>
  );
}

// spans are the options of a choice of seconds.
export const spans = (seconds: readonly number[]): [number, string][] => seconds.map((s) => [s, s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : "1 h"]);
