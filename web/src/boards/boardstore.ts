/**
 * The boards that can be shown: those kept in this browser, those of the server, and one that came with a link.
 *
 * Only the first can be changed. Changing another one makes a copy in this browser first.
 */

import { batch, computed, effect, signal } from "@preact/signals";
import type { Json } from "../shared/bus";
import { keep } from "../shared/saved";
import { bus, putInLink, shownTree, shownValues, view } from "../shared/store";
import {
  type Board,
  checkBoards,
  decodeFromLink,
  freeTitle,
  insertTile,
  kindsFor,
  makeTile,
  readBoard,
  type TileKind,
} from "./board";

export const boards = keep("boards", checkBoards);
/** The title of the board that is shown; empty for the first one. */
export const boardTitle = signal("");
/** A board that came whole within a link, as it stands there. */
export const boardInLink = signal("");
export const serverBoards = signal<string[]>([]);
export const boardProblem = signal("");
export const isEditing = signal(false);
/** What was done last, for those who cannot see it. */
export const announcement = signal("");

putInLink("board", boardTitle);
putInLink("tiles", boardInLink);

const foreign = signal<Board | null>(null);

/** The board that is shown, and whether it is one of this browser. */
export const shownBoard = computed<{ board: Board; isOwn: boolean } | null>(() => {
  if (foreign.value) return { board: foreign.value, isOwn: false };
  const board = boards.value.find(({ title }) => title === boardTitle.value) ?? boards.value[0];
  return board ? { board, isOwn: true } : null;
});

/** Show the board that the address names: from its own text, from this browser, or from the server. */
effect(() => {
  const packed = boardInLink.value;
  const title = boardTitle.value;
  if (packed) {
    try {
      foreign.value = decodeFromLink(packed);
      boardProblem.value = "";
    } catch (problem) {
      boardProblem.value = (problem as Error).message;
    }
  } else if (!title || boards.value.some((board) => board.title === title)) {
    foreign.value = null;
  } else {
    loadBoard(title);
  }
});

async function loadBoard(name: string): Promise<void> {
  try {
    const response = await fetch(`api/boards/${encodeURIComponent(name)}`);
    const answer = (await response.json()) as Json;
    if (!response.ok) throw new Error((answer as { error: string }).error);
    const board = readBoard(answer);
    if (boardTitle.value === name) {
      foreign.value = board;
      boardProblem.value = "";
    }
  } catch (problem) {
    if (boardTitle.value === name) boardProblem.value = (problem as Error).message;
  }
}

/** Ask the server which boards it has. */
export async function listServerBoards(): Promise<void> {
  try {
    const response = await fetch("api/boards");
    if (response.ok) serverBoards.value = ((await response.json()) as { boards: string[] }).boards;
  } catch {
    // Radar is away; the page says so already.
  }
}

export function showBoard(title: string): void {
  boardProblem.value = "";
  boardInLink.value = "";
  boardTitle.value = title;
}

/** Keep a board in this browser under a title that is free, and show it. */
export function keepBoard(board: Board): void {
  const kept = { ...board, title: freeTitle(boards.value, board.title) };
  boards.value = [...boards.value, kept];
  showBoard(kept.title);
}

export function newBoard(): void {
  keepBoard({ title: "Board", tiles: [] });
  isEditing.value = true;
}

export function removeBoard(title: string): void {
  // In one step: a title that is in no list would be asked of the server.
  batch(() => {
    boards.value = boards.value.filter((board) => board.title !== title);
    isEditing.value = false;
    showBoard("");
  });
}

/** Change the board that is shown; one that is not of this browser is copied first. */
export function changeBoard(change: (board: Board) => Board): void {
  const shown = shownBoard.value;
  if (!shown?.isOwn) keepBoard(change(shown?.board ?? { title: "Board", tiles: [] }));
  else boards.value = boards.value.map((board) => (board === shown.board ? change(board) : board));
}

/** Give the board that is shown another title. */
export function renameBoard(title: string): void {
  const shown = shownBoard.value;
  const wanted = title.trim();
  if (!shown || !wanted || wanted === shown.board.title) return;
  const free = freeTitle(boards.value, wanted);
  batch(() => {
    changeBoard((board) => ({ ...board, title: free }));
    boardTitle.value = free;
  });
}

/** Return the kinds of tile that suit what is at a path now. */
export function kindsAt(path: string): TileKind[] {
  const node = shownTree().find(path);
  return kindsFor(node ? node.flags : null, shownValues().get(path)?.value);
}

/** Return the value of a path that is not in sight, and so was not sent. */
async function askValue(path: string): Promise<Json | undefined> {
  try {
    return ((await bus.request("get", { path })) as Json[] | null)?.[0];
  } catch {
    return undefined;
  }
}

/** Put an element, or all below a node, on the board that is shown. */
export async function addToBoard(path: string, at?: number): Promise<void> {
  const node = shownTree().find(path);
  const value = shownValues().get(path)?.value ?? (node ? await askValue(path) : undefined);
  const kind = kindsFor(node ? node.flags : null, value)[0] as TileKind;
  changeBoard((board) => insertTile(board, makeTile(path, kind), at));
  announcement.value =
    view.value === "boards"
      ? `${path} is on the board.`
      : `${path} is on the board ${shownBoard.value?.board.title}.`;
}

/** Read a board from a file and keep it. */
export async function openFile(file: File): Promise<void> {
  try {
    keepBoard(readBoard(JSON.parse(await file.text()) as Json));
  } catch (problem) {
    boardProblem.value = `${file.name}: ${(problem as Error).message}`;
  }
}
