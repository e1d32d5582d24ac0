/**
 * What the page knows and shows, as signals.
 *
 * Values of visible rows change often. They are kept in a plain map, and one signal, `frame`, says at most once per
 * animation frame that something in it is new: a page that is hidden or idle does no work at all.
 */

import { computed, effect, type Signal, signal } from "@preact/signals";
import { readSchema, type Schema } from "../forms/schema";
import { ancestors, BAD, METHOD, READ_ONLY, Tree, type TreeRow, UNCERTAIN } from "../tree/tree";
import { Bus, type Json, type Meta, type Shown, type Status, type TreeDelta } from "./bus";
import { showAgo } from "./format";
import { favourites } from "./saved";

export interface Live {
  value: Json;
  ms: number;
  /** Events of it that were seen; with none, the value is older than `ms`. */
  changes: number;
  rate: number;
  /** The latest numbers, for the sparkline. */
  numbers: number[];
  previous: Json | undefined;
  /** Its owner at that instant, in the past only. */
  owner?: string | null;
  /** Time and quality by its owner, in the past only. */
  meta?: Meta;
}

/** The pages, in the order of their tabs. */
export const VIEWS = [
  ["tree", "Tree"],
  ["boards", "Boards"],
  ["charts", "Charts"],
  ["compare", "Compare"],
  ["peers", "Peers"],
  ["pipeline", "Pipeline"],
  ["journal", "Journal"],
] as const;
export type View = (typeof VIEWS)[number][0];

const SPARK_POINTS = 60;

export const status = signal<Status | null>(null);
export const linked = signal(false);
export const frame = signal(0);
export const structure = signal(0);
export const openNodes = signal<ReadonlySet<string>>(new Set());
export const selected = signal<string | null>(null);
export const query = signal("");
export const found = signal<{ paths: string[]; total: number; problem: string } | null>(null);
/** The instant that is shown, in microseconds since 1970; null is the present. */
export const instant = signal<number | null>(null);
export const view = signal<View>("tree");
/** Only favourites are listed. */
export const onlyFavourites = signal(false);

/** Whether this user may close connections and the like. */
export const mayAdminister = (): boolean => status.value?.admin ?? false;

export const live = new Map<string, Live>();
/** Owners of elements, as far as they were asked for; null where the daemon does not say. */
export const owners = new Map<string, string | null>();
/** What elements say of themselves, where they do. */
export const schemas = new Map<string, Schema>();
/** Time and quality of values, where their owners state them. */
const metas = new Map<string, Meta>();
export const liveTree = new Tree();
export const pastTree = new Tree();
export const pastValues = new Map<string, Live>();

/** The tree and the values that are shown: those of the present or of the instant. */
export const shownTree = (): Tree => (instant.value === null ? liveTree : pastTree);
export const shownValues = (): Map<string, Live> => (instant.value === null ? live : pastValues);

/** Return what is shown of a path, and draw the component that asks again when values come. */
export function shownValue(path: string): Live | undefined {
  frame.value;
  return shownValues().get(path);
}

export function ownerOf(path: string): string | null {
  return (instant.value === null ? owners.get(path) : pastValues.get(path)?.owner) ?? null;
}

export function metaOf(path: string): Meta {
  return (instant.value === null ? metas.get(path) : pastValues.get(path)?.meta) ?? {};
}

/** Return when a shown value was measured or else came, in milliseconds; `isOlder` if it may be older than that. */
export function timeOf(path: string, data: Live): { ms: number; isOlder: boolean } {
  const { ts } = metaOf(path);
  if (ts) return { ms: Date.parse(ts), isOlder: false };
  return { ms: data.ms, isOlder: instant.value === null && data.changes === 0 };
}

/** Return the age of a shown value as text. */
export function ageOf(path: string, data: Live): string {
  const { ms, isOlder } = timeOf(path, data);
  const age = showAgo((instant.value === null ? Date.now() : instant.value / 1000) - ms);
  if (!isOlder) return age;
  return age === "now" ? "" : `> ${age}`;
}

/** Return true if this user may set any state; those of the daemon itself do not count. */
export function maySetAny(): boolean {
  structure.value;
  for (const path of liveTree.paths()) {
    const flags = liveTree.find(path)?.flags ?? METHOD;
    if ((flags & (METHOD | READ_ONLY)) === 0 && !path.startsWith("$")) return true;
  }
  return false;
}

export const rows = computed<TreeRow[]>(() => {
  structure.value;
  const tree = shownTree();
  const hits = found.value ?? (onlyFavourites.value ? { paths: favourites.value } : null);
  if (!hits) return tree.flatten(openNodes.value);
  const list: TreeRow[] = [];
  for (const path of hits.paths) {
    const node = tree.find(path);
    if (node) list.push({ node, depth: 0, position: list.length + 1, siblings: hits.paths.length });
  }
  return list;
});

let frameDue = false;

export function requestFrame(): void {
  if (frameDue) return;
  frameDue = true;
  requestAnimationFrame(() => {
    frameDue = false;
    frame.value++;
  });
}

let structureDue = false;

export function requestStructure(): void {
  if (structureDue) return;
  structureDue = true;
  requestAnimationFrame(() => {
    structureDue = false;
    structure.value++;
  });
}

function receiveValue(path: string, [value, ms, changes]: Shown): void {
  const known = live.get(path);
  if (!known) {
    live.set(path, { value, ms, changes, rate: 0, numbers: numbersOf(value), previous: undefined });
    return;
  }
  const seconds = (ms - known.ms) / 1000;
  if (changes !== known.changes) {
    if (seconds > 0) {
      const now = (changes - known.changes) / seconds;
      known.rate = known.rate ? known.rate * 0.7 + now * 0.3 : now;
    }
    if (JSON.stringify(value) !== JSON.stringify(known.value)) known.previous = known.value;
    if (typeof value === "number") {
      known.numbers.push(value);
      if (known.numbers.length > SPARK_POINTS) known.numbers.shift();
    }
  }
  known.value = value;
  known.ms = ms;
  known.changes = changes;
}

function numbersOf(value: Json): number[] {
  return typeof value === "number" ? [value] : [];
}

function receiveTree(delta: TreeDelta): void {
  if (delta.reset) {
    liveTree.clear();
    live.clear();
    owners.clear();
    schemas.clear();
    metas.clear();
  }
  for (const path of delta.remove) {
    liveTree.remove(path);
    live.delete(path);
    owners.delete(path);
    schemas.delete(path);
    metas.delete(path);
  }
  let isNew = delta.reset || delta.remove.length > 0;
  for (const [path, flags] of delta.add) {
    if (!liveTree.find(path)) isNew = true;
    liveTree.add(path, flags);
    owners.delete(path); // it may have come back from another owner
  }
  if (isNew) searchAgain();
  if (!isArranged) openFirst();
  requestStructure();
}

/** Whether the reader has opened or closed a node; until then the page decides what is open. */
let isArranged = false;

/** Open the outermost nodes while that fills no more than a screen. */
function openFirst(): void {
  const open = new Set<string>();
  let budget = 40;
  let level = [...liveTree.root.children.values()].filter((node) => !node.path.startsWith("$"));
  while (level.length > 0) {
    const next = level.flatMap((node) => [...node.children.values()]);
    if (next.length === 0 || next.length > budget) break;
    budget -= next.length;
    for (const node of level) if (node.children.size > 0) open.add(node.path);
    level = next;
  }
  openNodes.value = open;
}

export const bus = new Bus(new URL("ws", location.href).href.replace(/^http/, "ws").replace(/[?#].*$/, ""), {
  onTree: receiveTree,
  onValues(values) {
    for (const path in values) receiveValue(path, values[path] as Shown);
    requestFrame();
  },
  onSchemas(told) {
    for (const path in told) {
      const schema = readSchema(told[path]);
      if (schema) schemas.set(path, schema);
      else schemas.delete(path);
    }
    requestFrame();
  },
  onMeta(told) {
    for (const path in told) {
      const meta = told[path];
      if (meta) metas.set(path, meta);
      else metas.delete(path);
    }
    requestFrame();
  },
  onStatus(next) {
    status.value = next;
  },
  onLink(open) {
    linked.value = open;
    if (open) searchAgain();
  },
});

// -- which values the server sends

const visible = signal<string[]>([]);
const pinned = signal<ReadonlySet<string>>(new Set());

export function showPaths(paths: string[]): void {
  visible.value = paths;
}

export function pinPaths(paths: Iterable<string>): void {
  pinned.value = new Set(paths);
}

const hidden = signal(document.hidden);
document.addEventListener("visibilitychange", () => {
  hidden.value = document.hidden;
});

let watchTimer = 0;
effect(() => {
  const chosen = selected.value;
  const paths = hidden.value
    ? []
    : [...new Set([...visible.value, ...pinned.value, ...(chosen ? [chosen] : [])])];
  clearTimeout(watchTimer);
  watchTimer = window.setTimeout(() => bus.watch(paths), 30);
});

// -- acting

export function toggle(path: string, open = !openNodes.value.has(path)): void {
  isArranged = true;
  const next = new Set(openNodes.value);
  if (open) next.add(path);
  else next.delete(path);
  openNodes.value = next;
}

export function closeAll(): void {
  isArranged = true;
  openNodes.value = new Set();
}

export function select(path: string | null, reveal = false): void {
  selected.value = path;
  if (!path || !reveal) return;
  isArranged = true;
  openNodes.value = new Set([...openNodes.value, ...ancestors(path)]);
}

let searchTimer = 0;

export function search(text: string): void {
  query.value = text;
  clearTimeout(searchTimer);
  if (!text.trim()) {
    found.value = null;
    return;
  }
  searchTimer = window.setTimeout(() => runSearch(text), 120);
}

let againTimer = 0;
const AGAIN_MS = 300;

/** Search anew, since elements came or went, or the server can be asked again; not more often than a reader can read. */
function searchAgain(): void {
  if (againTimer || instant.value !== null) return;
  againTimer = window.setTimeout(() => {
    againTimer = 0;
    if (query.value.trim() && instant.value === null) runSearch(query.value);
  }, AGAIN_MS);
}

async function searchPast(text: string): Promise<Json> {
  const response = await fetch(`api/search?${new URLSearchParams({ text, at: String(instant.value) })}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function runSearch(text: string): Promise<void> {
  try {
    const hits = instant.value === null ? await bus.request("search", { text }) : await searchPast(text);
    if (query.value === text) found.value = { ...(hits as { paths: string[]; total: number }), problem: "" };
  } catch (problem) {
    // Before the connection is there, or while it is lost, nothing is wrong with the search: it runs when it is back.
    if (/^(NotConnected|ConnectionLost)$/.test((problem as { type?: string }).type ?? "")) return;
    if (query.value === text) found.value = { paths: [], total: 0, problem: (problem as Error).message };
  }
}

export interface PastElement {
  path: string;
  peer: string | null;
  value: Json;
  method?: boolean;
  ts: number;
  /** Time by its owner, in microseconds. */
  source_ts?: number;
  quality?: string | { level?: string; reason?: string };
}

const QUALITY_FLAGS: Record<string, number> = { bad: BAD, uncertain: UNCERTAIN };

/** Put an element into the tree of the past, or replace its value there. */
export function putInPast(element: PastElement, isMethod: boolean): void {
  const { path, value, ts, source_ts, quality } = element;
  const { level, reason } = typeof quality === "object" ? quality : { level: quality, reason: undefined };
  const known = pastValues.get(path);
  pastTree.add(path, (isMethod ? METHOD : 0) | (QUALITY_FLAGS[level ?? ""] ?? 0));
  pastValues.set(path, {
    value,
    ms: ts / 1000,
    changes: 0,
    rate: 0,
    numbers: [],
    previous: known?.value,
    owner: element.peer || known?.owner || null,
    meta: {
      ts: source_ts === undefined ? undefined : new Date(source_ts / 1000).toISOString(),
      quality: level,
      reason,
    },
  });
}

/** Show the tree of an instant, or the present for null. */
export async function travel(to: number | null): Promise<void> {
  if (to === null) {
    instant.value = null;
    if (query.value) runSearch(query.value);
    requestStructure();
    return;
  }
  const response = await fetch(`api/tree?at=${Math.round(to)}`);
  const answer = (await response.json()) as { elements?: PastElement[]; error?: string };
  if (!response.ok || !answer.elements) throw new Error(answer.error ?? "The past cannot be read.");
  pastTree.clear();
  pastValues.clear();
  for (const element of answer.elements) putInPast(element, element.method ?? false);
  instant.value = to;
  if (query.value) runSearch(query.value);
  requestStructure();
  requestFrame();
}

// -- deep links

/** Open nodes in a link; a link with more of them would be too long to send. */
const LINKED_NODES_MAX = 40;

const arrived = new URLSearchParams(location.hash.slice(1));
const linkParts = signal<readonly [name: string, text: Signal<string>, usual: string][]>([]);

/** Let links hold a text: it begins with that of the link that was opened, and is in the address unless it is the usual. */
export function putInLink(name: string, text: Signal<string>): void {
  const usual = text.peek();
  text.value = arrived.get(name) ?? usual;
  linkParts.value = [...linkParts.value, [name, text, usual]];
}

// The address that the page writes itself causes no such event: another link was pasted, or is being gone back to.
// Until the event comes, the page may have written its own address over that of the link.
addEventListener("hashchange", (event) => {
  history.replaceState(null, "", event.newURL);
  location.reload();
});

function readLink(): void {
  const path = arrived.get("path");
  if (path) select(path, true);
  const rule = arrived.get("rule");
  if (rule) search(rule);
  const at = Number(arrived.get("at"));
  if (at) travel(at).catch(() => {});
  const page = VIEWS.find(([name]) => name === arrived.get("view"));
  if (page) view.value = page[0];
  const open = arrived.getAll("open");
  if (open.length > 0) {
    isArranged = true;
    openNodes.value = new Set([...openNodes.value, ...open]);
  }
  if (arrived.has("favourites")) onlyFavourites.value = true;
}

readLink();
effect(() => {
  const link = new URLSearchParams();
  if (view.value !== "tree") link.set("view", view.value);
  if (selected.value) link.set("path", selected.value);
  if (query.value) link.set("rule", query.value);
  if (instant.value !== null) link.set("at", String(instant.value));
  if (onlyFavourites.value) link.set("favourites", "");
  const open = [...openNodes.value];
  if (view.value === "tree" && isArranged && open.length <= LINKED_NODES_MAX)
    for (const node of open) link.append("open", node);
  for (const [name, text, usual] of linkParts.value) if (text.value !== usual) link.set(name, text.value);
  const hash = link.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
});
