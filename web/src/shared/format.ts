/** Values, times and sizes as people read them. */

import type { Json } from "./bus";

const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 7, useGrouping: false });

/** Return a value in one short line. */
export function showValue(value: Json | undefined): string {
  if (value === undefined) return "";
  if (typeof value === "number") return showNumber(value);
  if (typeof value === "string") return value;
  const blob = asBlob(value);
  if (blob) return `${blob.mime}, ${showBytes((blob.base64.length * 3) / 4)}`;
  return JSON.stringify(value);
}

export function showNumber(value: number): string {
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e9 || size < 1e-4 ? value.toExponential(4) : number.format(value);
}

export function showBytes(bytes: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let size = bytes;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  return `${size < 10 && unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** Return an age as "3 s", "5 min", "2 h" or "4 d". */
export function showAge(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86_400) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

/** Return an age for a column that is drawn again and again: "now" below a second, then whole seconds. */
export function showAgo(ms: number): string {
  if (ms < 1000) return "now";
  return ms < 10_000 ? `${Math.floor(ms / 1000)} s` : showAge(ms);
}

export function showRate(perSecond: number): string {
  if (perSecond < 0.05) return "";
  return perSecond < 10 ? `${perSecond.toFixed(1)}/s` : `${Math.round(perSecond)}/s`;
}

/** Return microseconds since 1970 as local date and time. */
export function showInstant(us: number): string {
  const date = new Date(us / 1000);
  const pad = (n: number, width = 2) => String(n).padStart(width, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** Return an instant as showInstant does, to the microsecond: readInstant gives the same instant again. */
export function showExactInstant(us: number): string {
  return showInstant(us) + String(us % 1000).padStart(3, "0");
}

export interface BlobValue {
  mime: string;
  base64: string;
}

/** Return a value that stands for bytes, or null. */
export function asBlob(value: Json): BlobValue | null {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return null;
  const { mime, base64 } = value;
  return typeof mime === "string" && typeof base64 === "string" && Object.keys(value).length === 2
    ? { mime, base64 }
    : null;
}

/** Return the text that base64 stands for, as UTF-8. */
export function decodeText(base64: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)));
}

export function typeName(value: Json | undefined): string {
  if (value === undefined) return "";
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return typeof value;
}

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };

/** Return microseconds since 1970 for a local date and time, or for an age such as -2h; null for anything else. */
export function readInstant(text: string, nowUs: number): number | null {
  const trimmed = text.trim().replace("−", "-");
  const age = /^-(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)$/.exec(trimmed);
  if (age) return Math.round(nowUs - Number(age[1]) * (UNITS[age[2] as string] as number) * 1e6);
  if (trimmed === "now") return nowUs;
  if (!/^\d{4}-\d{2}-\d{2}/.test(trimmed)) return null;
  // Date.parse knows milliseconds only; what is finer is added to whole seconds.
  const fraction = /\.\d+/.exec(trimmed)?.[0] ?? "";
  const whole = trimmed.replace(fraction, "");
  const ms = Date.parse(/[T ]\d/.test(whole) ? whole.replace(" ", "T") : `${whole}T00:00`);
  return Number.isNaN(ms) ? null : ms * 1000 + Math.round(Number(`0${fraction}`) * 1e6);
}
