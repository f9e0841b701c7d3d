// SPDX-License-Identifier: Apache-2.0

// Requests to the daemon that served this page.

import { prefix, type ErrorReply } from "./api_gen";

// Refused is an error reply of the daemon: one line with cause and remedy.
export class Refused extends Error {
  readonly code: string;

  constructor(code: string, cause: string, remedy: string) {
    super(remedy === "" ? cause : `${cause}; ${remedy}`);
    this.code = code;
  }
}

const tokenKey = "xsched.token";

// The token is kept until the tab is closed, and only for this origin.
export function token(): string {
  return sessionStorage.getItem(tokenKey) ?? "";
}

export function setToken(value: string): void {
  if (value === "") sessionStorage.removeItem(tokenKey);
  else sessionStorage.setItem(tokenKey, value);
}

// access tells whether the daemon has a token: then it names the scheme in every reply.
export const access = { token: false };

// timeoutMS exceeds the daemon's own limit for a request.
const timeoutMS = 20_000;

// work is the time that this page has spent on replies; waiting does not count.
export const work = { parseMS: 0 };

async function send<Reply>(method: string, path: string, body?: unknown): Promise<Reply> {
  const headers: Record<string, string> = {};
  if (token() !== "") headers["Authorization"] = `Bearer ${token()}`;
  const init: RequestInit = { method, headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(timeoutMS) };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const response = await fetch(prefix + path, init);
  access.token = response.headers.has("WWW-Authenticate");
  const text = await response.text();
  const began = performance.now();
  let value: unknown;
  try {
    value = JSON.parse(text);
    work.parseMS += performance.now() - began;
  } catch {
    throw new Refused("internal", `the daemon answered ${response.status} without JSON`, "");
  }
  if (!response.ok) {
    const { error } = value as ErrorReply;
    throw new Refused(error.code, error.message, error.remedy ?? "");
  }
  return value as Reply;
}

export const get = <Reply>(path: string): Promise<Reply> => send<Reply>("GET", path);
export const post = <Reply>(path: string, body: unknown): Promise<Reply> => send<Reply>("POST", path, body);
export const put = <Reply>(path: string, body: unknown): Promise<Reply> => send<Reply>("PUT", path, body);

// reasonOf is the one line that explains a failure.
export function reasonOf(err: unknown): string {
  if (err instanceof Refused) return err.message;
  if (err instanceof DOMException && err.name === "TimeoutError") return "the daemon does not answer";
  return "no connection to the daemon";
}
