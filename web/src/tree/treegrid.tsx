/** The tree as one flat, virtual list: only the rows in sight exist, and only they are sent by the server. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { addToBoard } from "../boards/boardstore";
import { isAbnormal, showPrecise } from "../forms/schema";
import { LoginHint } from "../pages/login";
import { copyText } from "../shared/copy";
import { showInstant, showRate, typeName } from "../shared/format";
import { favourites, searches, toggleFavourite, toggleSearch } from "../shared/saved";
import {
  ageOf,
  found,
  frame,
  instant,
  metaOf,
  onlyFavourites,
  openNodes,
  ownerOf,
  query,
  rows,
  schemas,
  search,
  select,
  selected,
  shownTree,
  shownValues,
  showPaths,
  structure,
  toggle,
} from "../shared/store";
import { startDrag } from "./drag";
import { wantOwners } from "./owners";
import { Sparkline } from "./sparkline";
import { ALARM, BAD, METHOD, READ_ONLY, STALE, type TreeRow, UNCERTAIN } from "./tree";

export const ROW_PX = 28;
const HEAD_PX = 26;
const EXTRA_ROWS = 8;

export function SearchBox() {
  const hits = found.value;
  const text = query.value.trim();
  const isSaved = searches.value.includes(text);
  return (
    <div class="search">
      <div class="search-line">
        <input
          id="search"
          type="search"
          placeholder="Search, or a rule: plant/** value>7"
          aria-label="Search by words or by rule"
          aria-keyshortcuts="/"
          spellcheck={false}
          autocomplete="off"
          value={query.value}
          onInput={(event) => search(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") search("");
            if (event.key === "ArrowDown" || event.key === "Enter") {
              event.preventDefault();
              document.getElementById("rows")?.focus();
            }
          }}
        />
        {text && (
          <button type="button" class="chip" aria-pressed={isSaved} onClick={() => toggleSearch(text)}>
            {isSaved ? "Saved" : "Save"}
          </button>
        )}
      </div>
      <SavedSearches />
      {hits && (
        <p class={hits.problem ? "hint problem" : "hint"} role="status">
          {hits.problem || `${hits.total} ${hits.total === 1 ? "match" : "matches"}`}
          {hits.total > hits.paths.length && `, the best ${hits.paths.length} are shown`}
        </p>
      )}
    </div>
  );
}

/** Favourites and saved searches, one press away; nothing while there are none. */
function SavedSearches() {
  if (favourites.value.length === 0 && searches.value.length === 0) return null;
  const text = query.value.trim();
  return (
    <div class="saved" role="group" aria-label="Saved">
      {favourites.value.length > 0 && (
        <button
          type="button"
          class="chip"
          aria-pressed={onlyFavourites.value && !text}
          onClick={() => {
            search("");
            onlyFavourites.value = !onlyFavourites.value;
          }}
        >
          <Star isOn={true} /> Favourites {favourites.value.length}
        </button>
      )}
      {searches.value.map((saved) => (
        <button
          key={saved}
          type="button"
          class="chip"
          aria-pressed={saved === text}
          onClick={() => search(saved === text ? "" : saved)}
        >
          {saved}
        </button>
      ))}
    </div>
  );
}

export function Star({ isOn }: { isOn: boolean }) {
  return (
    <svg width="12" height="12" viewBox="0 0 14 14" aria-hidden="true" class={`star${isOn ? " on" : ""}`}>
      <path d="M7 1.2l1.8 3.8 4.1.5-3 2.8.8 4.1L7 10.4l-3.7 2 .8-4.1-3-2.8 4.1-.5z" />
    </svg>
  );
}

export function TreeGrid() {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState(0);
  const list = rows.value;
  structure.value;

  useLayoutEffect(() => {
    const element = box.current as HTMLDivElement;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const first = Math.max(0, Math.floor(top / ROW_PX) - EXTRA_ROWS);
  const last = Math.min(list.length, Math.ceil((top + height) / ROW_PX) + EXTRA_ROWS);
  const visible = list.slice(first, last);
  const key = visible.map((row) => row.node.path).join("\n");
  useEffect(() => {
    const paths = visible.filter((row) => row.node.flags !== null).map((row) => row.node.path);
    showPaths(paths);
  }, [key]);
  useEffect(() => {
    wantOwners(visible.filter((row) => row.node.flags !== null).map((row) => row.node.path));
  }, [key, list]);

  const move = (to: number) => {
    const index = Math.max(0, Math.min(list.length - 1, to));
    setActive(index);
    const element = box.current as HTMLDivElement;
    if (index * ROW_PX < element.scrollTop) element.scrollTop = index * ROW_PX;
    else if (HEAD_PX + (index + 1) * ROW_PX > element.scrollTop + element.clientHeight)
      element.scrollTop = HEAD_PX + (index + 1) * ROW_PX - element.clientHeight;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const row = list[active];
    const page = Math.max(1, Math.floor(height / ROW_PX) - 1);
    const moves: Record<string, () => void> = {
      ArrowDown: () => move(active + 1),
      ArrowUp: () => move(active - 1),
      PageDown: () => move(active + page),
      PageUp: () => move(active - page),
      Home: () => move(0),
      End: () => move(list.length - 1),
      ArrowRight: () => {
        if (row && isOpen(row)) move(active + 1);
        else if (row?.node.children.size) toggle(row.node.path, true);
      },
      ArrowLeft: () => {
        if (row && isOpen(row)) toggle(row.node.path, false);
        else if (row?.node.parent?.path) move(list.findIndex((one) => one.node === row.node.parent));
      },
      Enter: () => row && activate(row),
      " ": () => row && activate(row),
      f: () => row && row.node.flags !== null && toggleFavourite(row.node.path),
      b: () => row && addToBoard(row.node.path),
      c: () => row && void copyText(row.node.path),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : moves[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };

  return (
    <div
      id="rows"
      ref={box}
      class="rows"
      role="treegrid"
      aria-label="States and methods"
      aria-rowcount={list.length + 1}
      aria-colcount={6}
      aria-keyshortcuts="f b c"
      aria-activedescendant={list[active] ? `row-${active}` : undefined}
      tabIndex={0}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={onKeyDown}
    >
      <div class="row columns" role="row" aria-rowindex={1}>
        <span role="columnheader">Name</span>
        <span class="value" role="columnheader">
          Value <span class="unit" />
        </span>
        <span class="spark" role="columnheader">
          Trend
        </span>
        <span class="rate" role="columnheader">
          Rate
        </span>
        <span class="age" role="columnheader">
          Age
        </span>
        <span class="owner" role="columnheader">
          Owner
        </span>
      </div>
      {list.length === 0 && <Empty />}
      <div class="canvas" role="rowgroup" style={{ height: `${list.length * ROW_PX}px` }}>
        {visible.map((row, index) => (
          <Row
            key={row.node.path}
            row={row}
            index={first + index}
            isActive={first + index === active}
            onPress={() => setActive(first + index)}
          />
        ))}
      </div>
    </div>
  );
}

function isOpen(row: TreeRow): boolean {
  return !found.value && !onlyFavourites.value && openNodes.value.has(row.node.path);
}

function activate(row: TreeRow): void {
  if (row.node.flags === null) toggle(row.node.path);
  else select(row.node.path);
}

interface RowProps {
  row: TreeRow;
  index: number;
  isActive: boolean;
  onPress(): void;
}

function Row({ row, index, isActive, onPress }: RowProps) {
  frame.value; // draw again when values came
  const { node, depth } = row;
  const isFlat = found.value !== null || onlyFavourites.value;
  const isBranch = !isFlat && node.children.size > 0;
  const open = isBranch && openNodes.value.has(node.path);
  const data = node.flags === null ? undefined : shownValues().get(node.path);
  const flags = node.flags ?? 0;
  const isMethod = (flags & METHOD) !== 0;
  const schema = schemas.get(node.path);
  return (
    <div
      id={`row-${index}`}
      class={`row${selected.value === node.path ? " selected" : ""}${isActive ? " active" : ""}`}
      role="row"
      tabIndex={-1}
      aria-level={depth + 1}
      aria-posinset={row.position}
      aria-setsize={row.siblings}
      aria-rowindex={index + 2}
      aria-expanded={isBranch ? open : undefined}
      aria-selected={selected.value === node.path}
      style={{ top: `${index * ROW_PX}px` }}
      draggable
      onDragStart={(event) => startDrag(event, node.path)}
      onClick={() => {
        onPress();
        activate(row);
      }}
      onKeyDown={() => {}}
    >
      <span class="name" role="gridcell" style={{ paddingLeft: `${8 + depth * 16}px` }}>
        {isBranch ? (
          <button
            type="button"
            class={`twist${open ? " open" : ""}`}
            tabIndex={-1}
            aria-label={open ? `Close ${node.path}` : `Open ${node.path}`}
            onClick={(event) => {
              event.stopPropagation();
              toggle(node.path);
            }}
          />
        ) : (
          <span class="twist leaf" />
        )}
        <span class="text" title={node.path}>
          {isFlat ? node.path : node.name}
        </span>
        {isBranch && <span class="count">{node.below}</span>}
        {favourites.value.includes(node.path) && <Star isOn={true} />}
        <Badges
          flags={flags}
          isAbnormal={isAbnormal(data?.value, schema)}
          reason={flags & (BAD | UNCERTAIN) ? metaOf(node.path).reason : undefined}
        />
      </span>
      <span class={`value ${typeName(data?.value)}`} role="gridcell">
        {data && !isMethod && <span class="text">{showPrecise(data.value, schema)}</span>}
        <span class="unit">{schema?.unit}</span>
      </span>
      <span class="spark" role="gridcell">
        {data && data.numbers.length > 1 && <Sparkline numbers={data.numbers} />}
      </span>
      <span class="rate" role="gridcell">
        {data && instant.value === null ? showRate(data.rate) : ""}
      </span>
      <span class="age" role="gridcell" title={data && !isMethod ? describeTime(node.path) : undefined}>
        {data && !isMethod ? ageOf(node.path, data) : ""}
      </span>
      <span class="owner" role="gridcell">
        {node.flags === null ? "" : ownerOf(node.path)}
      </span>
    </div>
  );
}

/** Say what the age of a row counts from, where that is not when the value came. */
function describeTime(path: string): string | undefined {
  const { ts } = metaOf(path);
  return ts ? `Measured ${showInstant(Date.parse(ts) * 1000)}` : undefined;
}

/** Badges of an element: the flag, the text, its colour, and what it means. */
const BADGES = [
  [ALARM, "alarm", "problem", "An alarm of it is raised"],
  [BAD, "bad", "problem", "Its owner says that the value is not to be trusted"],
  [UNCERTAIN, "uncertain", "warning", "Its owner is not sure of the value"],
  [STALE, "stale", "warning", "It has not changed for longer than it should"],
] as const;

interface BadgesProps {
  flags: number;
  isAbnormal: boolean;
  /** Why the quality is not good. */
  reason?: string;
}

export function Badges({ flags, isAbnormal, reason }: BadgesProps) {
  const isMethod = (flags & METHOD) !== 0;
  return (
    <>
      {isMethod && <span class="badge">method</span>}
      {(flags & READ_ONLY) !== 0 && (
        <span class="badge lesser" title={isMethod ? "You may not call it" : "It cannot be set"}>
          {isMethod ? "closed" : "read-only"}
        </span>
      )}
      {BADGES.map(
        ([flag, text, color, meaning]) =>
          (flags & flag) !== 0 && (
            <span
              key={text}
              class={`badge ${color}`}
              title={reason && flag & (BAD | UNCERTAIN) ? `${meaning}: ${reason}` : meaning}
            >
              {text}
            </span>
          ),
      )}
      {isAbnormal && (flags & ALARM) === 0 && (
        <span class="badge warning" title="It is outside its normal range">
          not normal
        </span>
      )}
    </>
  );
}

function Empty() {
  if (found.value?.problem) return null; // said below the search
  if (query.value)
    return (
      <div class="empty">
        <strong>Nothing matches “{query.value}”.</strong>
        <p>Words are looked for in paths. A rule may test values, too: plant/** value&gt;7</p>
      </div>
    );
  if (onlyFavourites.value)
    return (
      <div class="empty">
        <strong>
          None of your favourites is on the bus{instant.value === null ? "" : " at this instant"}.
        </strong>
        <p>They are shown as soon as a program adds them.</p>
      </div>
    );
  if (shownTree().size === 0)
    return (
      <div class="empty">
        <strong>{instant.value === null ? "Nothing is on the bus." : "Nothing was on the bus then."}</strong>
        {instant.value === null && <p>States and methods appear here as soon as a program adds them.</p>}
        <LoginHint />
      </div>
    );
  return null;
}
