/** Ranges of time of a chart, in seconds since 1970: moving, zooming, and values in force at an instant. */

export interface Range {
  since: number;
  until: number;
}

const SHORTEST_S = 0.001;
const LONGEST_S = 100 * 365 * 86_400;

/** Return a range that is shorter (factor below 1) or longer, with one instant of it staying in its place. */
export function zoomRange(range: Range, factor: number, around: number): Range {
  const length = range.until - range.since;
  const wanted = Math.min(Math.max(length * factor, SHORTEST_S), LONGEST_S);
  const part = length > 0 ? (around - range.since) / length : 0.5;
  return { since: around - wanted * part, until: around + wanted * (1 - part) };
}

/** Return a range moved by a part of its length: -0.5 is half a screen into the past. */
export function panRange(range: Range, part: number): Range {
  const step = (range.until - range.since) * part;
  return { since: range.since + step, until: range.until + step };
}

/** Write what a chart shows for a link: the seconds before now, or the ends of a range. */
export function writeShown(span: number, zoom: Range | null): string {
  return zoom ? `${zoom.since.toFixed(3)},${zoom.until.toFixed(3)}` : String(span);
}

/** Read what `writeShown` wrote; null for anything else. */
export function readShown(text: string): { span: number } | { zoom: Range } | null {
  const [first, second, ...rest] = text.split(",").map((part) => (part.trim() ? Number(part) : Number.NaN));
  if (first === undefined || rest.length > 0 || !Number.isFinite(first)) return null;
  if (second === undefined) return first > 0 ? { span: first } : null;
  return second > first ? { zoom: { since: first, until: second } } : null;
}

/** Return the position of the last entry that is not after an instant, or -1. */
export function indexAt(times: ArrayLike<number>, instant: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] as number) <= instant) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Name a state, or a member of its value, in one text; "#" may be in a path, so that the last one counts. */
export function splitSource(source: string): { path: string; member: string } {
  const at = source.lastIndexOf("#");
  return at < 0 ? { path: source, member: "" } : { path: source.slice(0, at), member: source.slice(at + 1) };
}

const pad = (n: number) => String(n).padStart(2, "0");

/** Label a tick as finely as the distance between ticks asks for. */
export function showTick(tick: number, ticks: number[]): string {
  const date = new Date(tick * 1000);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  const step = ticks.length > 1 ? (ticks[1] as number) - (ticks[0] as number) : 60;
  if (step >= 86_400) return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  if (step >= 60) return time;
  return step >= 1
    ? `${time}:${pad(date.getSeconds())}`
    : `${pad(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}
