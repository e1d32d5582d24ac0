/** Arguments of a call as rows of names and texts, for those who would rather not write JSON. */

import type { Json } from "../shared/bus";

export interface ArgumentRow {
  /** Empty for an argument by position. */
  name: string;
  text: string;
}

/** Return the value that a text stands for: JSON, or else the text itself. */
export function readArgument(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}

/** Return a value so that `readArgument` reads it again. */
export function writeArgument(value: Json): string {
  if (typeof value !== "string") return JSON.stringify(value);
  return readArgument(value) === value ? value : JSON.stringify(value);
}

/** Return the rows of arguments that were written as JSON; none if that is not possible. */
export function rowsOf(text: string): ArgumentRow[] {
  try {
    const args = JSON.parse(text || "[]") as Json;
    if (Array.isArray(args)) return args.map((value) => ({ name: "", text: writeArgument(value) }));
    if (typeof args === "object" && args !== null)
      return Object.entries(args).map(([name, value]) => ({ name, text: writeArgument(value) }));
  } catch {
    // The JSON is not finished; the rows begin empty.
  }
  return [];
}

/** Return what is wrong with rows, or nothing. */
export function checkRows(rows: ArgumentRow[]): string {
  const names = rows.map((row) => row.name.trim()).filter(Boolean);
  if (names.length > 0 && names.length < rows.length) return "Either all arguments have a name, or none.";
  if (new Set(names).size < names.length) return "Two arguments have the same name.";
  return "";
}

/** Return rows as the JSON text of the arguments: an object if they have names, or else an array. */
export function argsOf(rows: ArgumentRow[]): string {
  if (rows.length > 0 && rows.every((row) => row.name.trim()))
    return JSON.stringify(Object.fromEntries(rows.map((row) => [row.name.trim(), readArgument(row.text)])));
  return JSON.stringify(rows.map((row) => readArgument(row.text)));
}
