/** Owners of the rows in sight, asked for when the rows have stood still for a moment. */

import { readOwners } from "../shared/answers";
import type { Json } from "../shared/bus";
import { bus, owners, requestFrame } from "../shared/store";

const PAUSE_MS = 300;
const ASKED_MAX = 200;
let timer = 0;
/** Daemons of other makes have no `$jet/owners`. */
let isAnswered = true;

/** Ask for the owners of these paths; they are told with the next frame. */
export function wantOwners(paths: string[]): void {
  clearTimeout(timer);
  if (isAnswered && paths.length > 0) timer = window.setTimeout(() => ask(paths), PAUSE_MS);
}

async function ask(paths: string[]): Promise<void> {
  // A rule that names other paths, too, does not find those of the daemon itself.
  const wanted = paths.filter((path) => !owners.has(path) && !path.startsWith("$")).slice(0, ASKED_MAX);
  if (wanted.length === 0) return;
  const rule: Json = { path: { equalsOneOf: wanted } };
  try {
    const { result } = (await bus.request("call", { path: "$jet/owners", args: [rule] })) as { result: Json };
    const told = readOwners(result);
    for (const path of wanted) owners.set(path, told.get(path) ?? null);
    requestFrame();
  } catch (problem) {
    if ((problem as { type?: string }).type === "NotFound") isAnswered = false;
  }
}
