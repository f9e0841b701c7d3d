// SPDX-License-Identifier: Apache-2.0

// The state of the page. One loop reads the daemon once a second: the cost does not depend on how
// often tenants change. A hidden page reads nothing.

import { access, get, post, put, reasonOf, Refused, setToken, token, work } from "./api";
import type {
  Device, Devices, History, HintReply, Journal, JournalEntry, List, ModeReply, PolicyReply, Problem, ProcessReply, Stats, Version,
} from "./api_gen";
import { modeText, plain } from "./format";
import { appendJournal, mergeSpans, spanSeconds, type DeviceSpans } from "./history";

// Connection: "token" means that the daemon wants a token from this browser; "refused": it has none.
export type Connection = "connecting" | "live" | "lost" | "token" | "refused";

export interface Notice {
  text: string;
  error: boolean;
  undo?: () => void;
}

// Question is asked before a change.
export interface Question {
  text: string;
  button: string;
  apply: () => void;
}

export interface State {
  connection: Connection;
  reason: string; // why not live
  version: Version | undefined;
  list: List | undefined;
  devices: Device[];
  problems: Problem[]; // that keep every program of the host from being scheduled
  stats: Stats | undefined;
  policy: PolicyReply | undefined;
  mode: ModeReply | undefined;
  spans: Map<string, DeviceSpans>;
  names: Map<number, string>; // short names by PID, from the history: of programs that left
  history: History | undefined; // the charts' range
  historyReason: string; // why there is none
  journal: JournalEntry[];
  range: number; // seconds of the charts
  paused: boolean;
  notice: Notice | undefined;
  question: Question | undefined;
  ticks: number; // complete readings
}

export const ranges = [60, 300, 900, 3600];

const journalKept = 200; // of each kind
const periodMS = 1000;
// The page's own work takes at most a fortieth of the time. The browser needs about twice as much around it.
const costFactor = 40;
const slowestMS = 5000; // between two readings, however long they take
const longestMS = 10_000; // between two attempts to connect
const mostSpans = 16_384; // of a GPU
const seriesMS = 4000; // the shortest time between two readings of the charts

export class Store {
  state: State = {
    connection: "connecting", reason: "", version: undefined, list: undefined, devices: [], problems: [], stats: undefined, policy: undefined, mode: undefined,
    spans: new Map(), names: new Map(), history: undefined, historyReason: "", journal: [], range: 60, paused: false, notice: undefined, question: undefined, ticks: 0,
  };
  private changed: () => void = () => {};
  private drawn = false;
  private timer = 0;
  private reading = false;
  private failures = 0;
  private lastSpansMS = 0; // when spans were read last; 0: never
  private lastSeriesMS = 0;
  private journalNext = 0;
  private drawMS = 0;

  // start begins to read; render draws the state and is called at most once a frame.
  start(render: (state: State) => void): void {
    this.changed = () => {
      if (this.drawn) return;
      this.drawn = true;
      requestAnimationFrame(() => {
        this.drawn = false;
        const before = performance.now();
        render(this.state);
        // A task of its own runs after the browser's layout and painting.
        setTimeout(() => (this.drawMS = performance.now() - before), 0);
      });
    };
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.readSoon(0);
    });
    this.changed();
    this.readSoon(0);
  }

  set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    this.changed();
  }

  setRange(range: number): void {
    this.lastSeriesMS = 0;
    this.set({ range, history: undefined });
    this.readSoon(0);
  }

  setPaused(paused: boolean): void {
    this.set({ paused });
    if (!paused) this.readSoon(0);
  }

  login(value: string): void {
    setToken(value);
    this.forget();
    this.set({ connection: "connecting", reason: "" });
    this.readSoon(0);
  }

  private readSoon(delayMS: number): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.read(), delayMS);
  }

  // forget drops what belongs to a daemon that is gone, or to another caller.
  private forget(): void {
    this.lastSpansMS = this.lastSeriesMS = this.journalNext = 0;
    this.state = { ...this.state, spans: new Map(), names: new Map(), history: undefined, journal: [], policy: undefined, mode: undefined };
  }

  private async read(): Promise<void> {
    if (this.reading || document.hidden || this.state.paused) return;
    this.reading = true;
    let delay = periodMS;
    try {
      delay = await this.readAll();
      this.failures = 0;
    } catch (err) {
      this.failures++;
      // A daemon that restarts is back within seconds; one that is gone is asked ever less often.
      delay = Math.min(periodMS * this.failures, longestMS);
      const refused = err instanceof Refused && err.code === "not_allowed";
      if (refused && !access.token && token() !== "") {
        setToken(""); // of a daemon that had one
        delay = 0;
      } else this.set({ connection: !refused ? "lost" : access.token ? "token" : "refused", reason: reasonOf(err) });
    }
    this.reading = false;
    this.readSoon(delay);
  }

  // readAll reads once and returns the time until the next reading.
  private async readAll(): Promise<number> {
    const parsed = work.parseMS;
    const version = await get<Version>("/version");
    if (this.state.version !== undefined && this.state.version.started_unix_ns !== version.started_unix_ns) this.forget();
    const list = await get<List>("/processes");
    const host = await get<Devices>("/devices");
    const stats = await get<Stats>("/stats");
    const policy = this.state.policy?.name === list.policy ? this.state.policy : await get<PolicyReply>("/policy");
    const known = this.state.mode;
    const mode = known && modeText(known.mode, known.level) === modeText(list.mode, list.mode_level) ? known : await get<ModeReply>("/mode");
    const past = await this.readPast();
    this.set({ connection: "live", reason: "", version, list, devices: host.devices ?? [], problems: host.problems ?? [], stats, policy, mode, ...past, ticks: this.state.ticks + 1 });
    const cost = work.parseMS - parsed + this.drawMS;
    return Math.min(Math.max(periodMS, costFactor * cost), slowestMS);
  }

  // readPast reads the history since the last reading, and new events.
  private async readPast(): Promise<Partial<State>> {
    const now = performance.now();
    const out: Partial<State> = {};
    try {
      const missing = this.lastSpansMS === 0 ? spanSeconds : Math.ceil((now - this.lastSpansMS) / 1000) + 1;
      const seconds = Math.min(missing, spanSeconds);
      const recent = await get<History>(`/history?seconds=${seconds}`);
      this.lastSpansMS = now;
      const spans = new Map<string, DeviceSpans>();
      const names = new Map(this.state.names);
      for (const d of recent.devices ?? []) {
        spans.set(d.device, mergeSpans(this.state.spans.get(d.device), d, recent.to_ns - seconds * 1e9, recent.to_ns));
        if ((spans.get(d.device)?.spans.length ?? 0) > mostSpans) this.lastSpansMS = 0; // the daemon sums short spans up
        for (const s of d.series ?? []) if (s.name !== "") names.set(s.pid, plain(s.name));
      }
      out.spans = spans;
      out.names = names;
      // A point of the chart is a sixtieth of its range or more.
      if (this.lastSeriesMS === 0 || now - this.lastSeriesMS >= Math.max(seriesMS, (this.state.range / 60) * 1000)) {
        this.lastSeriesMS = now;
        out.history = await get<History>(`/history?seconds=${this.state.range}`);
      }
      const journal = await get<Journal>(`/journal?since=${this.journalNext}&max=${journalKept}&per_kind=true`);
      out.journal = appendJournal(this.state.journal, journal.entries ?? [], journalKept);
      this.journalNext = journal.next;
      out.historyReason = "";
    } catch (err) {
      if (!(err instanceof Refused)) throw err;
      out.historyReason = err.message; // in a container there is no history
    }
    return out;
  }

  // act makes one change and shows its result, or the daemon's reason for refusing it.
  private async act(change: () => Promise<string>, undo?: () => void): Promise<boolean> {
    try {
      const text = await change();
      this.set({ notice: { text, error: false, ...(undo && { undo }) } });
      return true;
    } catch (err) {
      this.set({ notice: { text: reasonOf(err), error: true } });
      return false;
    } finally {
      this.readSoon(0);
    }
  }

  setPriority(pid: number, name: string, priority: number, before: number): Promise<boolean> {
    return this.act(async () => {
      const reply = await post<HintReply>("/hint", { pid, priority });
      return `Priority of ${name} is ${reply.priority}`;
    }, () => void this.setPriority(pid, name, before, priority));
  }

  askSuspend(pid: number, name: string): void {
    const apply = (): void => void this.act(async () => (await post<ProcessReply>("/suspend", { pid })).message, () => this.resume(pid));
    this.set({ question: { text: `Suspend ${name}? Its GPU work stops until somebody resumes it.`, button: "Suspend program", apply } });
  }

  resume(pid: number): void {
    void this.act(async () => (await post<ProcessReply>("/resume", { pid })).message);
  }

  askPolicy(name: string): void {
    const { policy } = this.state;
    const text = `Switch the policy from ${policy?.name} to ${name} for all GPUs without one of their own? ${policy?.summaries?.[name] ?? ""}`;
    this.set({ question: { text, button: "Switch policy", apply: () => this.setPolicy(name) } });
  }

  private setPolicy(name: string): void {
    const before = this.state.policy?.name ?? name;
    void this.act(async () => `Policy is ${(await put<PolicyReply>("/policy", { name })).name}`, () => this.setPolicy(before));
  }

  askMode(name: string): void {
    const { mode } = this.state;
    const text = `Switch the mode from ${mode && modeText(mode.mode, mode.level)} to ${name} for all GPUs without one of their own?`;
    this.set({ question: { text, button: "Switch mode", apply: () => this.setMode(name) } });
  }

  // setMode selects a mode as modeText writes it.
  private setMode(name: string): void {
    const before = this.state.mode;
    const [mode, level] = name.split(" ");
    void this.act(async () => {
      const reply = await put<ModeReply>("/mode", level ? { mode, level: Number(level) } : { mode });
      return `Mode is ${modeText(reply.mode, reply.level)}`;
    }, () => this.setMode(before ? modeText(before.mode, before.level) : name));
  }
}
