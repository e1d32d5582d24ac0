/** Reading the states that daemons and pipelines publish about themselves: objects with fields that may be missing. */

import type { Json } from "./bus";
import { showAge, showBytes } from "./format";

export type Fields = { [key: string]: Json };

export function fieldsOf(value: Json | undefined): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

export function numberOf(value: Json | undefined): number {
  return typeof value === "number" ? value : 0;
}

export function textOf(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export interface Alarm {
  /** Path of the state that publishes the alarm. */
  at: string;
  name: string;
  bus: string;
  /** Path of the state that the alarm is about. */
  path: string;
}

/** Return the prefixes below which pipelines publish: `spark` for `spark/pipeline/batch`. */
export function findPipelines(paths: Iterable<string>): string[] {
  const found: string[] = [];
  for (const path of paths)
    if (path.endsWith("/pipeline/batch")) found.push(path.slice(0, -"/pipeline/batch".length));
  return found.sort();
}

/** Read the path of an alarm, `PREFIX/alarms/ALARM/BUS/PATH`; null for any other path. */
export function readAlarm(prefix: string, path: string): Alarm | null {
  const start = `${prefix}/alarms/`;
  if (!path.startsWith(start)) return null;
  const [name, bus, ...rest] = path.slice(start.length).split("/");
  return name && bus && rest.length > 0 ? { at: path, name, bus, path: rest.join("/") } : null;
}

/** Count the rollups of each size, `PREFIX/rollups/1s/...`. */
export function countRollups(prefix: string, paths: Iterable<string>): Map<string, number> {
  const start = `${prefix}/rollups/`;
  const counts = new Map<string, number>();
  for (const path of paths) {
    if (!path.startsWith(start)) continue;
    const size = path.slice(start.length).split("/", 1)[0] as string;
    counts.set(size, (counts.get(size) ?? 0) + 1);
  }
  return counts;
}

/** Return an address that a link may have: http and https, nothing that runs. */
export function safeAddress(value: Json | undefined): string | null {
  const text = textOf(value);
  return /^https?:\/\//i.test(text) ? text : null;
}

/** Counters of a journal at a moment. */
export interface Sample {
  ms: number;
  events: number;
  bytes: number;
}

/** Return events and bytes per second between two samples; null if nothing can be said. */
export function rateBetween(before: Sample | null, now: Sample): { events: number; bytes: number } | null {
  const seconds = before ? (now.ms - before.ms) / 1000 : 0;
  if (!before || seconds <= 0 || now.events < before.events) return null;
  return { events: (now.events - before.events) / seconds, bytes: (now.bytes - before.bytes) / seconds };
}

/** Describe what the journal drops, and when. */
export function describeRetention(stats: Fields): string {
  const bytes = numberOf(stats.keep_bytes);
  const seconds = numberOf(stats.keep_s);
  const parts = [];
  if (bytes > 0) parts.push(`${showBytes(bytes)} at most`);
  if (seconds > 0) parts.push(`for ${showAge(seconds * 1000)}`);
  return parts.length > 0 ? parts.join(", ") : "unlimited";
}

/** Return the detail of an event, an object as JSON text, in words. */
export function describeDetail(text: string): string {
  try {
    const parts = Object.entries(fieldsOf(JSON.parse(text) as Json));
    return parts.map(([name, value]) => `${name} ${textOf(value)}`).join(", ") || text;
  } catch {
    return text;
  }
}
