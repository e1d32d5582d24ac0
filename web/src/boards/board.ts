/**
 * Boards as data: a title and tiles in order, and their form in files and links.
 *
 * A board is shared as a file of JSON, {"radar": "board", "version": 1, "title": ..., "tiles": [...]}, or whole within a
 * link. Both come from elsewhere, so they are read with care: what is not understood is an error that says why.
 */

import type { Json } from "../shared/bus";
import { METHOD } from "../tree/tree";

export const TILE_KINDS = ["value", "gauge", "chart", "switch", "button", "table"] as const;
export type TileKind = (typeof TILE_KINDS)[number];

export interface Tile {
  path: string;
  kind: TileKind;
  /** Columns, from 1 to 4. */
  width: number;
  /** What a button sends: the arguments of a call, or the value of a set, as JSON text. */
  sends?: string;
}

export interface Board {
  title: string;
  tiles: Tile[];
}

export const WIDTH_MAX = 4;
export const TILES_MAX = 200;
const TITLE_CHARS_MAX = 100;

const WIDTHS: Record<TileKind, number> = { value: 1, gauge: 1, chart: 2, switch: 1, button: 1, table: 2 };

/** Return a tile for an element: of the kind that suits it best, or of the one that is wanted. */
export function makeTile(path: string, kind: TileKind): Tile {
  return { path, kind, width: WIDTHS[kind] };
}

/** Return the kinds that suit an element, the best first; flags are null for a node that is no element. */
export function kindsFor(flags: number | null, value: Json | undefined): TileKind[] {
  if (flags === null) return ["table"];
  if (flags & METHOD) return ["button"];
  if (typeof value === "boolean") return ["switch", "value", "chart", "button"];
  if (typeof value === "number") return ["value", "gauge", "chart", "button"];
  if (typeof value === "object" && value !== null) return ["table", "value", "button"];
  return ["value", "chart", "button"];
}

/** Move a tile, or change nothing if there is no such place. */
export function moveTile(board: Board, from: number, to: number): Board {
  const tile = board.tiles[from];
  if (!tile || to < 0 || to >= board.tiles.length || from === to) return board;
  const tiles = board.tiles.filter((_, index) => index !== from);
  tiles.splice(to, 0, tile);
  return { ...board, tiles };
}

export function insertTile(board: Board, tile: Tile, at = board.tiles.length): Board {
  if (board.tiles.length >= TILES_MAX) return board;
  return { ...board, tiles: [...board.tiles.slice(0, at), tile, ...board.tiles.slice(at)] };
}

export function removeTile(board: Board, at: number): Board {
  return { ...board, tiles: board.tiles.filter((_, index) => index !== at) };
}

export function changeTile(board: Board, at: number, change: Partial<Tile>): Board {
  return {
    ...board,
    tiles: board.tiles.map((tile, index) => (index === at ? { ...tile, ...change } : tile)),
  };
}

/** Return the board that a JSON value is; an Error says what it lacks. */
export function readBoard(told: Json): Board {
  if (typeof told !== "object" || told === null || Array.isArray(told) || told.radar !== "board")
    throw new Error('This is not a board of Radar: it has no "radar": "board".');
  if (told.version !== 1)
    throw new Error(`This board has version ${JSON.stringify(told.version)}; this page reads version 1.`);
  if (typeof told.title !== "string" || !Array.isArray(told.tiles))
    throw new Error("This board has no title or no tiles.");
  if (told.tiles.length > TILES_MAX) throw new Error(`A board has at most ${TILES_MAX} tiles.`);
  return { title: told.title.slice(0, TITLE_CHARS_MAX) || "Board", tiles: told.tiles.map(readTile) };
}

function readTile(told: Json, index: number): Tile {
  const name = `Tile ${index + 1}`;
  if (typeof told !== "object" || told === null || Array.isArray(told))
    throw new Error(`${name} is not an object.`);
  const { path, kind, width, sends } = told;
  if (typeof path !== "string" || !path) throw new Error(`${name} has no path.`);
  if (!TILE_KINDS.includes(kind as TileKind))
    throw new Error(`${name} is of kind ${JSON.stringify(kind)}; there are ${TILE_KINDS.join(", ")}.`);
  const tile = makeTile(path, kind as TileKind);
  if (typeof width === "number" && width >= 1 && width <= WIDTH_MAX) tile.width = Math.round(width);
  if (typeof sends === "string") tile.sends = sends;
  return tile;
}

export function encodeBoard(board: Board): string {
  return `${JSON.stringify({ radar: "board", version: 1, ...board }, null, 2)}\n`;
}

/** Return what is usable of the boards that the browser has kept. */
export function checkBoards(stored: Json): Board[] {
  if (!Array.isArray(stored)) return [];
  const boards: Board[] = [];
  for (const one of stored) {
    try {
      boards.push(readBoard({ radar: "board", version: 1, ...(one as object) } as Json));
    } catch {
      // One that cannot be read must not take the others with it.
    }
  }
  return boards;
}

/** Return a board as a text that may stand in an address. */
export function encodeForLink(board: Board): string {
  const bytes = new TextEncoder().encode(JSON.stringify([board.title, ...board.tiles.map(packTile)]));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

function packTile(tile: Tile): Json {
  return [tile.kind, tile.width, tile.path, ...(tile.sends === undefined ? [] : [tile.sends])];
}

/** Return the board in an address; an Error says that it is none. */
export function decodeFromLink(text: string): Board {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
    const [title, ...tiles] = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    return readBoard({
      radar: "board",
      version: 1,
      title,
      tiles: tiles.map(([kind, width, path, sends]: Json[]) => ({ kind, width, path, sends }) as Json),
    });
  } catch (problem) {
    throw new Error(`The board in this link cannot be read: ${(problem as Error).message}`);
  }
}

/** Return a title that no board has yet: "Board", "Board 2", ... */
export function freeTitle(boards: Board[], wanted = "Board"): string {
  const taken = new Set(boards.map((board) => board.title));
  if (!taken.has(wanted)) return wanted;
  for (let number = 2; ; number++) if (!taken.has(`${wanted} ${number}`)) return `${wanted} ${number}`;
}
