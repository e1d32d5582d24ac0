/** Values of a chart in words, and colours for values that are no numbers. */

import type { Json } from "../shared/bus";
import { showNumber, showValue } from "../shared/format";
import type { Loaded } from "./history";
import { indexAt } from "./range";

/** Words for values whose owner does not vouch for them; charts mark these in red. */
export const NOT_GOOD = "quality not good";

/** Words for values that their owner could tell only later. */
export const LATE = "came late";

/** Return a value with the words for what is to be known of it. */
export function mark(value: string, isBad: boolean, isLate: boolean): string {
  return [value, ...(isBad ? [NOT_GOOD] : []), ...(isLate ? [LATE] : [])].join(", ");
}

/** Colours of lines and bands; the first is the accent. */
export const SHADES = 6;

/** Return the value in force at an instant, with the extremes of its bucket if they differ. */
export function describeAt({ series, bands }: Loaded, at: number | null): string {
  if (bands) {
    const index =
      at === null
        ? bands.length - 1
        : indexAt(
            bands.map((band) => band.from),
            at,
          );
    const band = bands[index];
    if (!band || band.value === null) return "–";
    return mark(showBand(band.value), band.isBad, band.isLate);
  }
  if (!series) return "–";
  const index = at === null ? series.time.length - 1 : indexAt(series.time, at);
  const last = series.last[index] ?? null;
  if (last === null) return "–";
  const low = series.low[index] ?? last;
  const high = series.high[index] ?? last;
  const value =
    low === high ? showNumber(last) : `${showNumber(last)} (${showNumber(low)} to ${showNumber(high)})`;
  return mark(value, Boolean(series.bad[index]), Boolean(series.late[index]));
}

/** Return true if any value of a state is marked. */
export function hasMarks({ series, bands }: Loaded): boolean {
  return bands ? bands.some((band) => band.isBad) : (series?.bad.some((count) => count > 0) ?? false);
}

/** Return the JSON text of a band as people read it: texts without quotes, bytes by their type. */
export function showBand(json: string): string {
  try {
    return showValue(JSON.parse(json) as Json);
  } catch {
    return json;
  }
}

/** Number of a text that is the same wherever the text is, to choose a colour by. */
function hashOf(text: string): number {
  let sum = 0;
  for (let index = 0; index < text.length; index++) sum = (sum * 31 + text.charCodeAt(index)) >>> 0;
  return sum;
}

/** Return colours for values: off and false are pale, others differ from each other as long as there are enough. */
export function shadeValues(values: string[]): Map<string, string> {
  const shades = new Map<string, string>();
  const used = new Set<number>();
  for (const value of values) {
    if (/^(false|0|"off"|null)$/i.test(value)) {
      shades.set(value, "pale");
      continue;
    }
    let shade = value === "true" ? 0 : hashOf(value) % SHADES;
    while (used.has(shade) && used.size < SHADES) shade = (shade + 1) % SHADES;
    used.add(shade);
    shades.set(value, String(shade));
  }
  return shades;
}
