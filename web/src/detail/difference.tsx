/** The difference between two values: members that came, went or changed. */

import type { Json } from "../shared/bus";
import { showNumber, showValue } from "../shared/format";

export interface Difference {
  /** The member, as people write it: "limits.low"; empty for the value itself. */
  member: string;
  before: Json | undefined;
  after: Json | undefined;
}

const DIFFERENCES_MAX = 50;

/** List where two values differ. */
export function listDifferences(
  before: Json | undefined,
  after: Json | undefined,
  member = "",
  found: Difference[] = [],
): Difference[] {
  if (found.length >= DIFFERENCES_MAX || JSON.stringify(before) === JSON.stringify(after)) return found;
  if (!isNested(before) || !isNested(after) || Array.isArray(before) !== Array.isArray(after)) {
    found.push({ member, before, after });
    return found;
  }
  const [old, now] = [before as { [key: string]: Json }, after as { [key: string]: Json }];
  for (const name of new Set([...Object.keys(old), ...Object.keys(now)]))
    listDifferences(old[name], now[name], member ? `${member}.${name}` : name, found);
  return found;
}

function isNested(value: Json | undefined): value is Json[] | { [key: string]: Json } {
  return typeof value === "object" && value !== null;
}

/** Return a difference of numbers with its sign, nothing for other values. */
export function showStep(before: Json | undefined, after: Json | undefined): string {
  if (typeof before !== "number" || typeof after !== "number") return "";
  const step = after - before;
  return `${step > 0 ? "+" : "−"}${showNumber(Math.abs(step))}`;
}

export function DifferenceTable({ before, after }: { before: Json; after: Json }) {
  const rows = listDifferences(before, after);
  if (rows.length === 0) return null;
  return (
    <div class="scroll">
      <table class="difference">
        <thead>
          <tr>
            <th scope="col">Member</th>
            <th scope="col">Before</th>
            <th scope="col">Now</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.member}>
              <th scope="row">{row.member || "value"}</th>
              <td class="mono">{row.before === undefined ? "–" : showValue(row.before)}</td>
              <td class="mono">{row.after === undefined ? "–" : showValue(row.after)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
