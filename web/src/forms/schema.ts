/**
 * What an element says of itself: a subset of JSON Schema, with unit, normal range and precision.
 *
 * Most elements say nothing, and owners may say anything. So everything here takes a schema that may be absent, and
 * members of the wrong type count as absent.
 */

import type { Json } from "../shared/bus";
import { asBlob, showValue } from "../shared/format";

export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  unit?: string;
  enum?: Json[];
  minimum?: number;
  maximum?: number;
  /** Lowest and highest value that is no cause for alarm. */
  normal?: [low: number, high: number];
  /** Digits after the point. */
  precision?: number;
  properties?: { [name: string]: Schema };
  required?: string[];
  items?: Schema;
  readOnly?: boolean;
  /** Types of the arguments of a method, in order. */
  args?: Schema[];
  /** Value of an argument that is left out. */
  default?: Json;
  /** What a method returns. */
  result?: Schema;
}

type Members = { [key: string]: Json };

function isMembers(value: Json | undefined): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const TEXTS = ["type", "title", "description", "unit"] as const;
const NUMBERS = ["minimum", "maximum", "precision"] as const;

/** Return the schema that a JSON value is, or undefined. A text is a description, as old daemons have it. */
export function readSchema(told: Json | undefined): Schema | undefined {
  if (typeof told === "string") return told ? { description: told } : undefined;
  if (!isMembers(told)) return undefined;
  const schema: Schema = {};
  for (const name of TEXTS) if (typeof told[name] === "string") schema[name] = told[name];
  // A type that may also be null has the field of the other.
  if (Array.isArray(told.type)) {
    const others = told.type.filter((one) => one !== "null");
    if (others.length === 1 && typeof others[0] === "string") schema.type = others[0];
  }
  for (const name of NUMBERS) if (typeof told[name] === "number") schema[name] = told[name];
  if (Array.isArray(told.enum) && told.enum.length > 0) schema.enum = told.enum;
  if (told.readOnly === true) schema.readOnly = true;
  const { normal, required, args } = told;
  if (Array.isArray(normal) && typeof normal[0] === "number" && typeof normal[1] === "number")
    schema.normal = [normal[0], normal[1]];
  if (isMembers(told.properties)) {
    schema.properties = {};
    for (const [name, part] of Object.entries(told.properties))
      schema.properties[name] = readSchema(part) ?? {};
  }
  if (Array.isArray(required)) schema.required = required.filter((one) => typeof one === "string");
  if (told.items !== undefined) schema.items = readSchema(told.items);
  if (told.default !== undefined) schema.default = told.default;
  if (isMembers(told.result)) schema.result = readSchema(told.result);
  if (Array.isArray(args))
    schema.args = args.map((one) => (typeof one === "string" ? { type: one } : (readSchema(one) ?? {})));
  return schema;
}

/** Return a value in one line, without its unit, in the precision that its schema asks for. */
export function showPrecise(value: Json | undefined, schema: Schema | undefined): string {
  const digits = schema?.precision;
  if (typeof value === "number" && digits !== undefined && digits >= 0 && digits <= 12)
    return value.toFixed(Math.round(digits));
  return showValue(value);
}

/** Return True for a number that is outside its normal range. */
export function isAbnormal(value: Json | undefined, schema: Schema | undefined): boolean {
  if (typeof value !== "number" || !schema?.normal) return false;
  return value < schema.normal[0] || value > schema.normal[1];
}

/** Return the range of a number as its schema has it, the normal range if there is no other. */
export function rangeOf(schema: Schema | undefined): [low: number, high: number] | null {
  const low = schema?.minimum ?? schema?.normal?.[0];
  const high = schema?.maximum ?? schema?.normal?.[1];
  return low !== undefined && high !== undefined && low < high ? [low, high] : null;
}

export type FieldKind = "switch" | "choice" | "number" | "text" | "members" | "json";

const MEMBERS_MAX = 40;
const KINDS: Record<string, FieldKind> = {
  boolean: "switch",
  integer: "number",
  number: "number",
  string: "text",
};

/** Return the kind of field for a value: as its schema says, or else as the value is. */
export function fieldKind(value: Json | undefined, schema: Schema | undefined): FieldKind {
  if (schema?.enum) return "choice";
  const told = schema?.type ? KINDS[schema.type] : undefined;
  // A value that is not what its schema says is shown as what it is.
  if (told && (value === undefined || value === null || valueKind(value) === told)) return told;
  if (schema?.properties && (value === undefined || isMembers(value))) return "members";
  return value === undefined ? "json" : valueKind(value);
}

function valueKind(value: Json): FieldKind {
  if (typeof value === "boolean") return "switch";
  if (typeof value === "number") return "number";
  if (typeof value === "string") return "text";
  if (isMembers(value) && !asBlob(value) && Object.keys(value).length <= MEMBERS_MAX) return "members";
  return "json";
}

/** Return the names of the members of an object, those of its schema first. */
export function memberNames(value: Json | undefined, schema: Schema | undefined): string[] {
  const names = new Set(Object.keys(schema?.properties ?? {}));
  if (isMembers(value)) for (const name of Object.keys(value)) names.add(name);
  return [...names];
}

export function memberOf(value: Json | undefined, name: string): Json | undefined {
  return isMembers(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

/** Return what is wrong with a value, by member, as JSON pointers: "" is the value itself, "/limits/low" is within. */
export function checkValue(
  value: Json | undefined,
  schema: Schema | undefined,
  member = "",
  problems: Map<string, string> = new Map(),
): Map<string, string> {
  if (!schema || value === undefined) return problems;
  const problem = checkAlone(value, schema);
  if (problem) problems.set(member, problem);
  if (!isMembers(value)) return problems;
  for (const name of schema.required ?? [])
    if (!Object.hasOwn(value, name)) problems.set(pointTo(member, name), `${name} is missing.`);
  for (const [name, part] of Object.entries(schema.properties ?? {}))
    checkValue(memberOf(value, name), part, pointTo(member, name), problems);
  return problems;
}

/** Return the JSON pointer to a member of what another one points to. */
export function pointTo(member: string, name: string): string {
  return `${member}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
}

/** Return a value with some of its members replaced, without changing the value itself. */
export function applyEdits(value: Json, edits: ReadonlyMap<string, Json>): Json {
  let edited = value;
  for (const [member, part] of edits) {
    const names = member.split("/").slice(1);
    edited = replaceMember(edited, names, part);
  }
  return edited;
}

function replaceMember(value: Json, names: string[], part: Json): Json {
  const [first, ...rest] = names;
  if (first === undefined) return part;
  const name = first.replaceAll("~1", "/").replaceAll("~0", "~");
  const members = isMembers(value) ? value : {};
  return { ...members, [name]: replaceMember(members[name] ?? null, rest, part) };
}

function checkAlone(value: Json, schema: Schema): string {
  if (schema.enum && !schema.enum.some((one) => JSON.stringify(one) === JSON.stringify(value)))
    return `${showValue(value)} is none of ${schema.enum.map(showValue).join(", ")}.`;
  if (typeof value !== "number") return "";
  const unit = schema.unit ? ` ${schema.unit}` : "";
  if (schema.type === "integer" && !Number.isInteger(value)) return `${value} is not a whole number.`;
  if (schema.minimum !== undefined && value < schema.minimum) return `At least ${schema.minimum}${unit}.`;
  if (schema.maximum !== undefined && value > schema.maximum) return `At most ${schema.maximum}${unit}.`;
  return "";
}

/** Return the value that a field of a schema begins with. */
export function emptyValue(schema: Schema | undefined): Json {
  if (schema?.default !== undefined && schema.default !== null) return schema.default;
  if (schema?.enum) return schema.enum[0] as Json;
  switch (schema?.type) {
    case "boolean":
      return false;
    case "integer":
    case "number":
      return schema.minimum ?? 0;
    case "string":
      return "";
    case "array":
      return [];
    case "object":
      return Object.fromEntries(
        (schema.required ?? []).map((name) => [name, emptyValue(schema.properties?.[name])]),
      );
    default:
      return null;
  }
}

/** Return what a value may be, in a few words: `number`, `"once" | "always"`, `list of Step`. */
export function showType(schema: Schema | undefined): string {
  if (schema?.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema?.type === "array") return schema.items ? `list of ${showType(schema.items)}` : "list";
  return schema?.title ?? schema?.type ?? "any value";
}
