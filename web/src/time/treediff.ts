/** One difference between two trees, in words. */

import type { Json } from "../shared/bus";
import { showValue } from "../shared/format";

export interface Difference {
  path: string;
  before?: Json;
  after?: Json;
}

export function describeDifference(difference: Difference): "added" | "removed" | "changed" {
  if (!("before" in difference)) return "added";
  return "after" in difference ? "changed" : "removed";
}

/** Return what a number has changed by, as text with a sign; empty for other values. */
export function describeStep(difference: Difference): string {
  const { before, after } = difference;
  if (typeof before !== "number" || typeof after !== "number") return "";
  const step = after - before;
  return `${step > 0 ? "+" : "−"}${showValue(Math.abs(step))}`;
}
