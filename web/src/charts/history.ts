/** History from the server: reduced series of numbers, and bands of other values, both as Arrow. */

import { tableFromIPC } from "@uwdata/flechette";
import { type Range, splitSource } from "./range";

export interface Series {
  /** Seconds since 1970, as the chart takes them. */
  time: number[];
  low: (number | null)[];
  high: (number | null)[];
  last: (number | null)[];
  /** Values of the bucket whose quality is not good. */
  bad: number[];
  /** Values of the bucket that came late. */
  late: number[];
  /** Points that the buckets stand for. */
  count: number;
}

export interface Band {
  from: number;
  /** JSON text; null where there is no value. */
  value: string | null;
  /** True if its quality is not good. */
  isBad: boolean;
  /** True if a value of it came late. */
  isLate: boolean;
}

/** What is known of one state in a range of time: a line of numbers, or bands of other values. */
export interface Loaded {
  source: string;
  series: Series | null;
  bands: Band[] | null;
}

async function load(address: string, signal: AbortSignal): Promise<ReturnType<typeof tableFromIPC>> {
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(((await response.json()) as { error: string }).error);
  return tableFromIPC(new Uint8Array(await response.arrayBuffer()));
}

const us = (seconds: number) => String(Math.round(seconds * 1e6));

function query(source: string, range: Range): string {
  const { path, member } = splitSource(source);
  const params = new URLSearchParams({ path, since: us(range.since), until: us(range.until) });
  if (member) params.set("member", member);
  return params.toString();
}

/** Load what a state was between two instants, for a chart of so many pixels. */
export async function loadHistory(
  source: string,
  range: Range,
  pixels: number,
  signal: AbortSignal,
): Promise<Loaded> {
  const series = await loadSeries(source, range, pixels, signal);
  if (series.time.length === 0 || series.last.some((value) => value !== null))
    return { source, series, bands: null };
  return { source, series: null, bands: await loadBands(source, range, signal) };
}

async function loadSeries(
  source: string,
  range: Range,
  pixels: number,
  signal: AbortSignal,
): Promise<Series> {
  const table = await load(`api/series?${query(source, range)}&points=${Math.round(pixels)}`, signal);
  const column = (name: string) =>
    Array.from(table.getChild(name), (value) => (value === null ? null : Number(value)));
  return {
    time: column("ts").map((one) => Math.max((one as number) / 1e6, range.since)),
    low: column("min"),
    high: column("max"),
    last: column("last"),
    bad: column("bad").map((one) => one ?? 0),
    late: column("late").map((one) => one ?? 0),
    count: column("count").reduce((sum: number, one) => sum + (one ?? 0), 0),
  };
}

async function loadBands(source: string, range: Range, signal: AbortSignal): Promise<Band[]> {
  const table = await load(`api/bands?${query(source, range)}`, signal);
  const from = Array.from(table.getChild("ts"), (one) => Number(one) / 1e6);
  const values = Array.from(table.getChild("value"), (value) => value as string | null);
  const bad = Array.from(table.getChild("bad"), Number);
  const late = Array.from(table.getChild("late"), Number);
  return from.map((start, index) => ({
    from: Math.max(start, range.since),
    value: values[index] ?? null,
    isBad: (bad[index] ?? 0) > 0,
    isLate: (late[index] ?? 0) > 0,
  }));
}

/** Return the address of a file with the events of these states in a range. */
export function exportAddress(sources: string[], range: Range, format: string): string {
  const params = new URLSearchParams({ since: us(range.since), until: us(range.until), format });
  for (const source of sources) params.append("path", splitSource(source).path);
  return `api/export?${params}`;
}

export interface HistoryEvent {
  seq: number;
  ts: number;
  event: string;
  path: string;
  value: unknown;
  peer: string | null;
  detail?: string | null;
  /** True for a value that came late. */
  late?: boolean;
}

/** Load the newest events of some states in a range. */
export async function loadEvents(
  sources: string[],
  range: Range,
  limit: number,
  signal: AbortSignal,
): Promise<{ events: HistoryEvent[]; complete: boolean }> {
  const params = new URLSearchParams({
    since: us(range.since),
    until: us(range.until),
    newest: "1",
    limit: String(limit),
    events: "add,change,remove,past,set",
  });
  for (const source of sources) params.append("path", splitSource(source).path);
  const response = await fetch(`api/events?${params}`, { signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
