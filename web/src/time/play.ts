/**
 * Playing the past: the shown instant moves on at a multiple of real time, and the tree with it.
 *
 * Each step asks for the last event of each path since the instant that is shown and applies it to the tree, so that a
 * step costs what has changed and not what there is. Where a step takes longer than it should, the next one is longer:
 * play slows down its pictures, never its clock.
 */

import { signal } from "@preact/signals";
import {
  instant,
  type PastElement,
  pastTree,
  pastValues,
  putInPast,
  requestFrame,
  requestStructure,
  travel,
} from "../shared/store";
import { METHOD } from "../tree/tree";

export const SPEEDS = [1, 10, 100, 1000] as const;
/** How many times faster than real time the past is played; 0 is standing still. */
export const speed = signal(0);
export const playProblem = signal("");

const STEP_MS = 200;

interface Changes {
  reset: boolean;
  elements: PastElement[];
  removed: string[];
  error?: string;
}

/** Return the instant to show after some milliseconds of playing, never after the end. */
export function advance(from: number, passedMs: number, times: number, end: number): number {
  return Math.min(Math.round(from + passedMs * 1000 * times), end);
}

/** Bring the tree of the past to a later instant. */
export async function moveOn(from: number, to: number): Promise<void> {
  const range = new URLSearchParams({ since: String(from + 1), until: String(to + 1) });
  const response = await fetch(`api/changes?${range}`);
  const changes = (await response.json()) as Changes;
  if (!response.ok) throw new Error(changes.error ?? "The past cannot be read.");
  if (instant.value !== from) return; // the reader has gone elsewhere meanwhile
  if (changes.reset) return travel(to);
  let isStructure = changes.removed.length > 0;
  for (const path of changes.removed) {
    pastTree.remove(path);
    pastValues.delete(path);
  }
  for (const element of changes.elements) {
    const flags = pastTree.find(element.path)?.flags;
    putInPast(
      element,
      flags === undefined || flags === null ? element.value === null : (flags & METHOD) !== 0,
    );
    if (pastTree.find(element.path)?.flags !== flags) isStructure = true;
  }
  instant.value = to;
  if (isStructure) requestStructure();
  requestFrame();
}

let run = 0;

/** Play from the shown instant on, until `end()` is reached, which may move, or until `stop`. */
export async function play(times: number, end: () => number): Promise<void> {
  speed.value = times;
  playProblem.value = "";
  run++;
  const mine = run;
  let shownAt = performance.now();
  while (mine === run && instant.value !== null) {
    const from = instant.value;
    const now = performance.now();
    if (document.hidden) shownAt = now; // nobody looks: the film waits
    const to = advance(from, now - shownAt, times, end());
    shownAt = now;
    try {
      if (to > from) await moveOn(from, to);
    } catch (problem) {
      playProblem.value = (problem as Error).message;
      break;
    }
    if (to >= end()) break;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, STEP_MS - (performance.now() - now))));
  }
  if (mine === run) speed.value = 0;
}

export function stop(): void {
  run++;
  speed.value = 0;
}
