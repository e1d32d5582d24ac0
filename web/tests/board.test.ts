import { describe, expect, it } from "vitest";
import {
  type Board,
  checkBoards,
  decodeFromLink,
  encodeBoard,
  encodeForLink,
  freeTitle,
  insertTile,
  kindsFor,
  makeTile,
  moveTile,
  readBoard,
  removeTile,
  TILES_MAX,
} from "../src/boards/board";
import { gaugeArc, gaugePoint } from "../src/boards/gauge";
import { METHOD } from "../src/tree/tree";

const board: Board = {
  title: "Pumps – Süd",
  tiles: [
    makeTile("pump/speed", "gauge"),
    makeTile("pump/speed", "chart"),
    { path: "pump/reset", kind: "button", width: 1, sends: '["now"]' },
  ],
};

describe("boards", () => {
  it("survive a file and a link", () => {
    expect(readBoard(JSON.parse(encodeBoard(board)))).toEqual(board);
    const packed = encodeForLink(board);
    expect(packed).toMatch(/^[\w-]+$/);
    expect(decodeFromLink(packed)).toEqual(board);
  });

  it.each([
    [{}, "not a board of Radar"],
    [{ radar: "board", version: 2, title: "a", tiles: [] }, "version 2"],
    [{ radar: "board", version: 1, title: "a" }, "no title or no tiles"],
    [{ radar: "board", version: 1, title: "a", tiles: [{ kind: "value" }] }, "Tile 1 has no path"],
    [
      { radar: "board", version: 1, title: "a", tiles: [{ path: "a", kind: "map" }] },
      "there are value, gauge",
    ],
  ])("say what is wrong with %j", (told, problem) => expect(() => readBoard(told)).toThrow(problem));

  it("refuse a link that was cut", () => {
    expect(() => decodeFromLink(encodeForLink(board).slice(0, 20))).toThrow("cannot be read");
  });

  it("move, take in and lose tiles", () => {
    const paths = (one: Board) => one.tiles.map((tile) => tile.kind);
    expect(paths(moveTile(board, 0, 2))).toEqual(["chart", "button", "gauge"]);
    expect(moveTile(board, 0, 3)).toBe(board);
    expect(paths(insertTile(board, makeTile("a", "value"), 1))).toEqual([
      "gauge",
      "value",
      "chart",
      "button",
    ]);
    expect(paths(removeTile(board, 1))).toEqual(["gauge", "button"]);
    const full = { title: "a", tiles: Array.from({ length: TILES_MAX }, () => makeTile("a", "value")) };
    expect(insertTile(full, makeTile("b", "value"))).toBe(full);
  });

  it("offer what suits an element", () => {
    expect(kindsFor(null, undefined)).toEqual(["table"]);
    expect(kindsFor(METHOD, null)).toEqual(["button"]);
    expect(kindsFor(0, true)[0]).toBe("switch");
    expect(kindsFor(0, 7)).toContain("gauge");
    expect(kindsFor(0, { a: 1 })[0]).toBe("table");
    expect(kindsFor(0, "text")).not.toContain("gauge");
  });

  it("keep what can be read of what the browser has stored", () => {
    expect(checkBoards([board as never, { title: 7 } as never, "x"])).toEqual([board]);
    expect(checkBoards(null)).toEqual([]);
  });

  it("get titles that are free", () => {
    expect(freeTitle([board])).toBe("Board");
    expect(freeTitle([{ title: "Board", tiles: [] }])).toBe("Board 2");
  });
});

it("bends a gauge over the top", () => {
  const [[left], [top], [right]] = [gaugePoint(0), [gaugePoint(0.5)[1]], gaugePoint(1)];
  expect(left).toBeCloseTo(200 - (right as number));
  expect(top).toBeLessThan(gaugePoint(0)[1]);
  expect(gaugeArc(0, 1)).toContain(" 0 1 1 ");
  expect(gaugeArc(0, 0.5)).toContain(" 0 0 1 ");
});
