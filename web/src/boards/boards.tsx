/** Boards: states and methods that belong together, as tiles on one page. */

import { useEffect, useRef, useState } from "preact/hooks";
import { copyText } from "../shared/copy";
import { DraftInput } from "../shared/draftinput";
import { PathField } from "../shared/pathfield";
import { bus, frame, pinPaths, structure } from "../shared/store";
import { isPathDrag, readDrag } from "../tree/drag";
import { SearchBox, TreeGrid } from "../tree/treegrid";
import {
  type Board,
  changeTile,
  encodeBoard,
  encodeForLink,
  insertTile,
  makeTile,
  moveTile,
  removeTile,
  type Tile,
  type TileKind,
  WIDTH_MAX,
} from "./board";
import {
  addToBoard,
  announcement,
  boardInLink,
  boardProblem,
  boards,
  changeBoard,
  isEditing,
  keepBoard,
  kindsAt,
  listServerBoards,
  newBoard,
  openFile,
  removeBoard,
  renameBoard,
  serverBoards,
  showBoard,
  shownBoard,
} from "./boardstore";
import { TileBody, tilePaths } from "./tiles";

export function BoardsPage() {
  const shown = shownBoard.value;
  structure.value;
  useEffect(() => {
    listServerBoards();
    return () => pinPaths([]);
  }, []);
  const paths = shown ? [...new Set(shown.board.tiles.flatMap(tilePaths))] : [];
  const key = paths.join("\n");
  useEffect(() => pinPaths(paths), [key]);
  const editing = isEditing.value && shown !== null;
  return (
    <main
      class={`boards${editing ? " editing" : ""}`}
      onDragOver={(event) => {
        if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
      }}
      onDrop={(event) => {
        const file = event.dataTransfer?.files[0];
        if (!file) return;
        event.preventDefault();
        openFile(file);
      }}
    >
      {editing && (
        <section class="panel list" aria-label="Elements">
          <SearchBox />
          <TreeGrid />
        </section>
      )}
      <section class="board" aria-label="Board">
        <BoardBar />
        {boardProblem.value && <p class="hint problem board-problem">{boardProblem.value}</p>}
        {shown ? <Tiles board={shown.board} isOwn={shown.isOwn} editing={editing} /> : <NoBoard />}
      </section>
    </main>
  );
}

/** Say aloud what was done by keyboard or pointer; shown for a moment, too. */
export function Announcement() {
  const text = announcement.value;
  useEffect(() => {
    if (!text) return;
    const timer = setTimeout(() => {
      announcement.value = "";
    }, 4000);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <output class={`announcement${text ? " on" : ""}`} aria-live="polite">
      {text}
    </output>
  );
}

function NoBoard() {
  return (
    <div class="empty">
      <strong>
        {boards.value.length + serverBoards.value.length > 0 ? "No board is open." : "There is no board yet."}
      </strong>
      <p>
        A board shows states as values, gauges, charts, switches, buttons and tables. Make one and drag states
        onto it, or press <kbd>b</kbd> on a row of the tree.
      </p>
      <button type="button" class="primary" onClick={newBoard}>
        New board
      </button>
    </div>
  );
}

function BoardBar() {
  const shown = shownBoard.value;
  const file = useRef<HTMLInputElement>(null);
  const titles = boards.value.map((board) => board.title);
  const others = serverBoards.value.filter((name) => !titles.includes(name));
  return (
    <header class="board-bar">
      {(titles.length > 0 || others.length > 0 || boardInLink.value) && (
        <select
          aria-label="Board"
          value={shown?.board.title ?? ""}
          onChange={(event) => {
            isEditing.value = false;
            showBoard(event.currentTarget.value);
          }}
        >
          {!shown && <option value="">Choose a board</option>}
          {shown && !shown.isOwn && !others.includes(shown.board.title) && (
            <option value={shown.board.title}>{shown.board.title}</option>
          )}
          {titles.map((title) => (
            <option key={title} value={title}>
              {title}
            </option>
          ))}
          {others.length > 0 && (
            <optgroup label="On the server">
              {others.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </optgroup>
          )}
        </select>
      )}
      {shown && isEditing.value && (
        <DraftInput class="board-title" aria-label="Title" value={shown.board.title} onDone={renameBoard} />
      )}
      {shown?.isOwn && (
        <button
          type="button"
          class="chip"
          aria-pressed={isEditing.value}
          onClick={() => {
            isEditing.value = !isEditing.value;
          }}
        >
          {isEditing.value ? "Done" : "Edit"}
        </button>
      )}
      {shown && !shown.isOwn && (
        <button type="button" class="chip" onClick={() => keepBoard(shown.board)}>
          Keep in this browser
        </button>
      )}
      <span class="grow" />
      {shown && <Share board={shown.board} />}
      <button type="button" class="chip" onClick={() => file.current?.click()}>
        Open file
      </button>
      <input
        ref={file}
        type="file"
        class="hidden"
        tabIndex={-1}
        aria-label="File of a board"
        accept=".json,application/json"
        onChange={(event) => {
          const chosen = event.currentTarget.files?.[0];
          if (chosen) openFile(chosen);
          event.currentTarget.value = "";
        }}
      />
      <button type="button" class="chip" onClick={newBoard}>
        New
      </button>
      {shown?.isOwn && isEditing.value && (
        <button type="button" class="chip" onClick={() => removeBoard(shown.board.title)}>
          Delete
        </button>
      )}
    </header>
  );
}

function Share({ board }: { board: Board }) {
  const save = () => {
    const address = URL.createObjectURL(new Blob([encodeBoard(board)], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${board.title.replace(/[^\w.-]+/g, "-") || "board"}.json`;
    link.click();
    URL.revokeObjectURL(address);
  };
  const copyLink = async () => {
    const link = new URL(location.href);
    link.hash = new URLSearchParams({ view: "boards", tiles: encodeForLink(board) }).toString();
    await copyText(link.href);
    announcement.value = "A link that holds this board was copied.";
  };
  return (
    <>
      <button type="button" class="chip" onClick={copyLink}>
        Copy link
      </button>
      <button type="button" class="chip" onClick={save}>
        Save file
      </button>
    </>
  );
}

interface TilesProps {
  board: Board;
  isOwn: boolean;
  editing: boolean;
}

/** Return how often a tile is there before, since a path may be on a board twice. */
function countBefore(board: Board, at: number): number {
  const { kind, path } = board.tiles[at] as Tile;
  return board.tiles.slice(0, at).filter((tile) => tile.kind === kind && tile.path === path).length;
}

/** The index of the tile that is being moved, or null. */
let moving: number | null = null;

function Tiles({ board, editing }: TilesProps) {
  const [target, setTarget] = useState<number | null>(null);
  const onDrop = (event: DragEvent, at: number) => {
    setTarget(null);
    const path = readDrag(event);
    if (path) {
      event.preventDefault();
      addToBoard(path, at);
    } else if (moving !== null) {
      event.preventDefault();
      const from = moving;
      moving = null;
      changeBoard((now) => moveTile(now, from, Math.min(at > from ? at - 1 : at, now.tiles.length - 1)));
    }
  };
  const onDragOver = (event: DragEvent, at: number) => {
    if (!editing || (!isPathDrag(event) && moving === null)) return;
    event.preventDefault();
    event.stopPropagation();
    setTarget(at);
  };
  const end = board.tiles.length;
  return (
    <div
      class="tiles-scroll"
      role="group"
      aria-label="Tiles"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard
      tabIndex={0}
      onDragOver={(event) => onDragOver(event, end)}
      onDragLeave={() => setTarget(null)}
      onDrop={(event) => onDrop(event, end)}
    >
      {editing && <AddTile />}
      {board.tiles.length === 0 && (
        <div class={`empty drop${target !== null ? " target" : ""}`}>
          <strong>{editing ? "Drag states here from the tree." : "This board is empty."}</strong>
          <p>
            {editing ? (
              <>
                Or type a path above, or press <kbd>b</kbd> on a row of the tree.
              </>
            ) : (
              "Press Edit to put states on it."
            )}
          </p>
        </div>
      )}
      <ul class="tiles">
        {board.tiles.map((tile, index) => (
          <li
            key={`${tile.kind}:${tile.path}:${countBefore(board, index)}`}
            class={`tile ${tile.kind} w${tile.width}${target === index ? " target" : ""}`}
            draggable={editing}
            onDragStart={(event) => {
              moving = index;
              event.dataTransfer?.setData("text/plain", tile.path);
            }}
            onDragEnd={() => {
              moving = null;
              setTarget(null);
            }}
            onDragOver={(event) => onDragOver(event, index)}
            onDrop={(event) => {
              event.stopPropagation();
              onDrop(event, index);
            }}
          >
            <h2 title={tile.path}>{tile.path}</h2>
            {editing && <TileTools tile={tile} index={index} count={board.tiles.length} />}
            <div class="tile-body">
              <TileBody tile={tile} />
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Add a tile by typing: the way without a pointer, and on small screens. */
function AddTile() {
  const [text, setText] = useState("");
  const [matches, setMatches] = useState<string[]>([]);
  useEffect(() => {
    if (!text.trim()) {
      setMatches([]);
      return;
    }
    const timer = setTimeout(() => {
      bus.request("search", { text, limit: 20 }).then(
        (answer) => setMatches((answer as { paths: string[] }).paths),
        () => setMatches([]),
      );
    }, 120);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <PathField
      class="add-tile"
      label="Path to add"
      placeholder="Add a path, or a node for a table of all below it"
      text={text}
      onText={setText}
      suggestions={matches}
      onAdd={addToBoard}
    />
  );
}

function TileTools({ tile, index, count }: { tile: Tile; index: number; count: number }) {
  frame.value;
  const kinds = kindsAt(tile.path);
  const move = (to: number, label: string) => {
    changeBoard((board) => moveTile(board, index, to));
    announcement.value = `${tile.path} is number ${to + 1} of ${count}.`;
    // The browser forgets the focus of what moves within the page.
    requestAnimationFrame(() =>
      document.querySelectorAll(".tile")[to]?.querySelector<HTMLElement>(`[aria-label="${label}"]`)?.focus(),
    );
  };
  const change = (part: Partial<Tile>) => changeBoard((board) => changeTile(board, index, part));
  return (
    <div class="tools" role="group" aria-label={`Tile ${tile.path}`}>
      <select
        aria-label="Show as"
        value={tile.kind}
        onChange={(event) => {
          const kind = event.currentTarget.value as TileKind;
          changeBoard((board) =>
            insertTile(removeTile(board, index), { ...tile, ...makeTile(tile.path, kind) }, index),
          );
        }}
      >
        {[...new Set([tile.kind, ...kinds])].map((kind) => (
          <option key={kind} value={kind}>
            {kind}
          </option>
        ))}
      </select>
      <Tool
        label="Move back"
        sign="M9 2 4 7l5 5"
        isOff={index === 0}
        onPress={() => move(index - 1, "Move back")}
      />
      <Tool
        label="Move on"
        sign="M5 2l5 5-5 5"
        isOff={index === count - 1}
        onPress={() => move(index + 1, "Move on")}
      />
      <Tool
        label="Narrower"
        sign="M3 7h8"
        isOff={tile.width <= 1}
        onPress={() => change({ width: tile.width - 1 })}
      />
      <Tool
        label="Wider"
        sign="M3 7h8M7 3v8"
        isOff={tile.width >= WIDTH_MAX}
        onPress={() => change({ width: tile.width + 1 })}
      />
      <Tool
        label="Remove"
        sign="M3 3l8 8M11 3l-8 8"
        isOff={false}
        onPress={() => {
          changeBoard((board) => removeTile(board, index));
          announcement.value = `${tile.path} was removed.`;
        }}
      />
      {tile.kind === "button" && (
        <DraftInput
          class="sends"
          aria-label="What it sends, as JSON"
          placeholder="JSON to send"
          value={tile.sends ?? ""}
          onDone={(sends) => change({ sends })}
        />
      )}
    </div>
  );
}

function Tool(props: { label: string; sign: string; isOff: boolean; onPress(): void }) {
  return (
    <button
      type="button"
      class="icon"
      title={props.label}
      aria-label={props.label}
      disabled={props.isOff}
      onClick={props.onPress}
    >
      <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" class="glyph">
        <path d={props.sign} />
      </svg>
    </button>
  );
}
