/** Reading what people type into the page, and what methods of the daemon answer. */

import type { Json } from "./bus";

/** Return the owners in the answer of `$jet/owners`, by path. */
export function readOwners(answer: Json): Map<string, string> {
  const owners = new Map<string, string>();
  if (!Array.isArray(answer)) return owners;
  for (const row of answer) {
    if (typeof row !== "object" || row === null || Array.isArray(row)) continue;
    if (typeof row.path === "string" && typeof row.owner === "string") owners.set(row.path, row.owner);
  }
  return owners;
}

/** Return what is wrong with the arguments of a call, or nothing. */
export function checkArguments(text: string): string {
  if (!text.trim()) return "";
  try {
    const args = JSON.parse(text);
    return typeof args === "object" && args !== null
      ? ""
      : "Arguments are an array, or an object of named ones.";
  } catch (problem) {
    return `This is not JSON: ${(problem as Error).message}`;
  }
}
