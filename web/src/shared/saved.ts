/**
 * What a reader keeps in the browser: favourites, searches, calls and boards.
 *
 * Each kind is a signal that is written to the local storage as it changes, and read again when another tab has written
 * it. What the storage holds is checked before it is used: an older page, or a person, may have written it.
 */

import { effect, type Signal, signal } from "@preact/signals";
import type { Json } from "./bus";

/** Radars under other sub-paths of the same host show other buses, and keep things of their own. */
const PREFIX = `radar:${location.pathname}:`;

const FAVOURITES_MAX = 500;
const SEARCHES_MAX = 50;
const CALLS_MAX = 100;

export interface SavedCall {
  path: string;
  name: string;
  /** The arguments as JSON text. */
  args: string;
}

/** Return a signal that is kept in the browser; `check` returns what is usable of what was kept. */
export function keep<T>(name: string, check: (stored: Json) => T): Signal<T> {
  const kept = signal(check(read(name)));
  let written = JSON.stringify(kept.peek());
  effect(() => {
    const text = JSON.stringify(kept.value);
    if (text === written) return;
    written = text;
    try {
      localStorage.setItem(PREFIX + name, text);
    } catch {
      // A full or forbidden storage: it is kept until the page is closed.
    }
  });
  window.addEventListener("storage", (event) => {
    if (event.key !== PREFIX + name) return;
    const next = check(read(name));
    written = JSON.stringify(next);
    kept.value = next;
  });
  return kept;
}

function read(name: string): Json {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name) ?? "null") as Json;
  } catch {
    return null;
  }
}

export function checkTexts(stored: Json, max: number): string[] {
  if (!Array.isArray(stored)) return [];
  return [...new Set(stored.filter((one): one is string => typeof one === "string"))].slice(0, max);
}

export function checkCalls(stored: Json): SavedCall[] {
  if (!Array.isArray(stored)) return [];
  const calls: SavedCall[] = [];
  for (const one of stored) {
    if (typeof one !== "object" || one === null || Array.isArray(one)) continue;
    const { path, name, args } = one;
    if (typeof path === "string" && typeof name === "string" && typeof args === "string")
      calls.push({ path, name, args });
  }
  return calls.slice(0, CALLS_MAX);
}

export const favourites = keep("favourites", (stored) => checkTexts(stored, FAVOURITES_MAX));
export const searches = keep("searches", (stored) => checkTexts(stored, SEARCHES_MAX));
export const calls = keep("calls", checkCalls);

/** Put a text into a list, or take it out if it is there. The newest comes first, the oldest falls out. */
function toggleIn(list: Signal<string[]>, text: string, max: number): void {
  const others = list.value.filter((one) => one !== text);
  list.value = others.length < list.value.length ? others : [text, ...others].slice(0, max);
}

export const toggleFavourite = (path: string): void => toggleIn(favourites, path, FAVOURITES_MAX);
export const toggleSearch = (text: string): void => toggleIn(searches, text.trim(), SEARCHES_MAX);

/** Keep a call; one of the same name for the same method is replaced. */
export function saveCall(call: SavedCall): void {
  calls.value = [call, ...withoutCall(call)].slice(0, CALLS_MAX);
}

export function removeCall(call: SavedCall): void {
  calls.value = withoutCall(call);
}

function withoutCall(call: SavedCall): SavedCall[] {
  return calls.value.filter((one) => one.path !== call.path || one.name !== call.name);
}
