// SPDX-License-Identifier: Apache-2.0

// The controls of the whole daemon: policy, mode, token, appearance.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { token } from "./api";
import { modeText } from "./format";
import type { State, Store } from "./store";
import { setTheme, theme, type Theme } from "./theme";

// Dialog is modal: the browser keeps the focus inside and gives it back.
function Dialog({ label, close, children }: { label: string; close: () => void; children: JSX.Element | JSX.Element[] }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return <dialog ref={box} aria-label={label} onClose={close} onCancel={close}>{children}</dialog>;
}

interface Change {
  text: string;
  button: string;
  apply: () => void;
}

function Confirm({ change, close }: { change: Change; close: () => void }) {
  return (
    <Dialog label={change.text} close={close}>
      <p>{change.text}</p>
      <p class="inline">
        <button type="button" class="primary" onClick={() => { close(); change.apply(); }}>{change.button}</button>
        <button type="button" onClick={close}>Cancel</button>
      </p>
    </Dialog>
  );
}

function Token({ store, close }: { store: Store; close: () => void }) {
  const [text, setText] = useState("");
  return (
    <Dialog label="Token" close={close}>
      <form onSubmit={(e) => { e.preventDefault(); store.login(text.trim()); close(); }}>
        <p>With the token of <code>--http-token-file</code> this page acts as the daemon's user. With that of <code>--http-view-token-file</code> it only shows. The token is kept until you close this tab.</p>
        <label>Token <input type="password" name="token" autocomplete="off" value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
        <p class="inline">
          <button type="submit" class="primary">Use token</button>
          {token() === "" ? <></> : <button type="button" onClick={() => { store.login(""); close(); }}>Forget token</button>}
          <button type="button" onClick={close}>Cancel</button>
        </p>
      </form>
    </Dialog>
  );
}

const next: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };

export function Controls({ store, state }: { store: Store; state: State }) {
  const [change, setChange] = useState<Change>();
  const [asks, setAsks] = useState(false);
  const { policy, mode } = state;
  const levels = [1, 2, 3];
  const modeValue = mode === undefined ? "" : modeText(mode.mode, mode.level);
  const modes = (mode?.available ?? []).flatMap((m) => (m === "level" ? levels.map((l) => `level ${l}`) : [m]));
  return (
    <div class="controls">
      <label>Policy{" "}
        <select name="policy" value={policy?.name ?? ""} disabled={policy === undefined} title={policy?.summaries?.[policy.name] ?? ""}
          onChange={(e) => {
            const name = e.currentTarget.value;
            e.currentTarget.value = policy?.name ?? "";
            setChange({ text: `Switch the policy from ${policy?.name} to ${name} for all GPUs without one of their own? ${policy?.summaries?.[name] ?? ""}`, button: "Switch policy", apply: () => void store.setPolicy(name) });
          }}>
          {(policy?.available ?? []).map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <label>Mode{" "}
        <select name="mode" value={modeValue} disabled={mode === undefined}
          onChange={(e) => {
            const name = e.currentTarget.value;
            e.currentTarget.value = modeValue;
            const [kind = "", level = "0"] = name.split(" ");
            setChange({ text: `Switch the mode from ${modeValue} to ${name} for all GPUs without one of their own?`, button: "Switch mode", apply: () => void store.setMode(kind, Number(level)) });
          }}>
          {modes.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <button type="button" class="pause" aria-pressed={state.paused} onClick={() => store.setPaused(!state.paused)}>Pause</button>
      <button type="button" class="theme" onClick={() => { setTheme(next[theme()]); store.set({}); }} aria-label={`Appearance: ${theme()}. Switch to ${next[theme()]}`}>
        {theme() === "auto" ? "Auto" : theme() === "light" ? "Light" : "Dark"}
      </button>
      <button type="button" class="token" onClick={() => setAsks(true)}>{token() === "" ? "Token…" : "Token set"}</button>
      {change && <Confirm change={change} close={() => setChange(undefined)} />}
      {asks && <Token store={store} close={() => setAsks(false)} />}
    </div>
  );
}

// Login is the whole page while the daemon refuses to be read.
export function Login({ store, reason }: { store: Store; reason: string }) {
  const [text, setText] = useState("");
  return (
    <form class="login" onSubmit={(e) => { e.preventDefault(); store.login(text.trim()); }}>
      <p role="alert">{reason}</p>
      <label>Token <input type="password" name="token" autocomplete="off" required value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>{" "}
      <button type="submit" class="primary">Log in</button>{" "}
      {token() === "" ? null : <button type="button" onClick={() => store.login("")}>Continue without token</button>}
      <p>The token is the content of the file of <code>--http-token-file</code>. It is kept until you close this tab.</p>
    </form>
  );
}
