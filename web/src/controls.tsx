// SPDX-License-Identifier: Apache-2.0

// The controls of the whole daemon: policy, mode, token, appearance.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { access, token } from "./api";
import { modeText } from "./format";
import type { Question, State, Store } from "./store";
import { setTheme, theme, type Theme } from "./theme";

// Dialog is modal: the browser keeps the focus inside and gives it back.
function Dialog({ label, close, children }: { label: string; close: () => void; children: JSX.Element | JSX.Element[] }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return <dialog ref={box} aria-label={label} onClose={close} onCancel={close}>{children}</dialog>;
}

// Confirm asks before a change.
export function Confirm({ store, question }: { store: Store; question: Question }) {
  const close = (): void => store.set({ question: undefined });
  return (
    <Dialog label={question.text} close={close}>
      <p>{question.text}</p>
      <p class="inline">
        <button type="button" class="primary" onClick={() => { close(); question.apply(); }}>{question.button}</button>
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
            store.askPolicy(e.currentTarget.value);
            e.currentTarget.value = policy?.name ?? "";
          }}>
          {(policy?.available ?? []).map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <label>Mode{" "}
        <select name="mode" value={modeValue} disabled={mode === undefined}
          onChange={(e) => {
            store.askMode(e.currentTarget.value);
            e.currentTarget.value = modeValue;
          }}>
          {modes.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <button type="button" class="pause" aria-pressed={state.paused} onClick={() => store.setPaused(!state.paused)}>Pause</button>
      <button type="button" class="theme" onClick={() => { setTheme(next[theme()]); store.set({}); }} aria-label={`Appearance: ${theme()}. Switch to ${next[theme()]}`}>
        {theme() === "auto" ? "Auto" : theme() === "light" ? "Light" : "Dark"}
      </button>
      {access.token && <button type="button" class="token" onClick={() => setAsks(true)}>{token() === "" ? "Token…" : "Token set"}</button>}
      {asks && <Token store={store} close={() => setAsks(false)} />}
    </div>
  );
}

// NoAccess is the whole page while a daemon without a token refuses to be read.
export function NoAccess({ reason }: { reason: string }) {
  const port = location.port || "80";
  return (
    <section class="login">
      <p role="alert">The daemon refuses this browser: {reason}</p>
      <p>Open the page on the daemon's machine as <code>http://localhost:{port}/</code>. From another machine, use a tunnel: <code>ssh -L {port}:127.0.0.1:{port} HOST</code>.</p>
      <p>This daemon has no token. To allow access with one, start it with <code>--http-token-file FILE</code>.</p>
    </section>
  );
}

// Login is the whole page while the daemon wants a token.
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
