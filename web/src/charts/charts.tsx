/** Several states in one chart, with the events behind it. */

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { LoginHint } from "../pages/login";
import type { Json } from "../shared/bus";
import { showValue } from "../shared/format";
import { PathField } from "../shared/pathfield";
import { liveTree, putInLink, status, view } from "../shared/store";
import { Moment } from "../time/moment";
import { METHOD } from "../tree/tree";
import { LATE } from "./bands";
import { HistoryChart } from "./chart";
import { type HistoryEvent, loadEvents } from "./history";
import type { Range } from "./range";

const EVENTS_SHOWN = 200;
const SOURCES_MAX = 12;
const SUGGESTED_MAX = 50;

/** Paths in the chart, one a line: a path may contain anything else. */
const chosen = signal("");
putInLink("chart", chosen);
/** The time that is shown, the same for the page of charts and the history of a state. */
export const shownTime = signal("");
putInLink("time", shownTime);

const listSources = () => chosen.value.split("\n").filter(Boolean);

/** Add a state to the chart, or a member of it as "path#member". */
export function addToChart(source: string): void {
  const sources = listSources();
  if (!sources.includes(source)) chosen.value = [...sources, source].slice(-SOURCES_MAX).join("\n");
}

/** Show a state in the page of charts, next to what is there already. */
export function openInChart(source: string): void {
  addToChart(source);
  view.value = "charts";
}

export function ChartsPage() {
  const [range, setRange] = useState<Range | null>(null);
  const sources = listSources();
  if (!status.value?.history)
    return (
      <main class="page-body">
        <h2>Charts</h2>
        <NoJournal />
      </main>
    );
  return (
    <main class="page-body charts">
      <header class="title">
        <h2>Charts</h2>
        <AddPath />
        {sources.length > 0 && (
          <button
            type="button"
            class="chip"
            onClick={() => {
              chosen.value = "";
            }}
          >
            Clear
          </button>
        )}
      </header>
      {sources.length === 0 ? (
        <div class="empty">
          <strong>No state is chosen.</strong>
          <p>Add paths above, or press “Compare” at the history of a state.</p>
        </div>
      ) : (
        <>
          <HistoryChart
            sources={sources}
            height={360}
            shown={shownTime}
            onRange={setRange}
            onRemove={(source) => {
              chosen.value = sources.filter((one) => one !== source).join("\n");
            }}
          />
          {range && <Events sources={sources} range={range} />}
        </>
      )}
    </main>
  );
}

/** Say why there is no past, and what to do about it. */
export function NoJournal() {
  return (
    <div class="empty">
      <strong>This bus keeps no history that you may read.</strong>
      <p>
        Start the daemon with <code>jetd --journal DIR</code>, or record any daemon with{" "}
        <code>jet record DIR</code> and start Radar with <code>jet radar --journal DIR</code>.
      </p>
      <LoginHint />
    </div>
  );
}

function AddPath() {
  const [text, setText] = useState("");
  const wanted = text.toLowerCase();
  const suggested: string[] = [];
  for (const path of liveTree.paths()) {
    if (suggested.length >= SUGGESTED_MAX) break;
    const flags = liveTree.find(path)?.flags ?? METHOD;
    if (text && !(flags & METHOD) && path.toLowerCase().includes(wanted)) suggested.push(path);
  }
  return (
    <PathField
      class="add-path"
      label="Add a path to the chart"
      placeholder="Add a path"
      text={text}
      onText={setText}
      suggestions={suggested}
      onAdd={addToChart}
    />
  );
}

/** The newest events of a range; one press shows the tree of that instant. */
export function Events({ sources, range }: { sources: string[]; range: Range }) {
  const [events, setEvents] = useState<HistoryEvent[]>([]);
  const [isComplete, setComplete] = useState(true);
  const [problem, setProblem] = useState("");
  const [isOpen, setOpen] = useState(false);
  const last = useRef(0);
  useEffect(() => {
    if (!isOpen) return;
    const stop = new AbortController();
    // A live chart moves every second; its table need not.
    const waitMs = Math.max(0, last.current + 3000 - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      loadEvents(sources, range, EVENTS_SHOWN, stop.signal).then(
        (found) => {
          setEvents(found.events);
          setComplete(found.complete);
          setProblem("");
        },
        (failure: Error) => {
          if (!stop.signal.aborted) setProblem(failure.message);
        },
      );
    }, waitMs);
    return () => {
      clearTimeout(timer);
      if (waitMs === 0) return;
      stop.abort();
    };
  }, [isOpen, sources.join("\n"), range.since, range.until]);
  return (
    <details class="events" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Events</summary>
      {problem && <p class="hint problem">{problem}</p>}
      {!isComplete && <p class="hint">These are the newest {EVENTS_SHOWN}; an export has all of them.</p>}
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Time</th>
              {sources.length > 1 && <th>Path</th>}
              <th>Event</th>
              <th class="num">Value</th>
              <th>Peer</th>
            </tr>
          </thead>
          <tbody>
            {events.map((event) => (
              <tr key={event.seq}>
                <td>
                  <Moment ts={event.ts} />
                </td>
                {sources.length > 1 && <td>{event.path}</td>}
                <td class="quiet">{event.late ? LATE : event.event}</td>
                <td class="num mono">{event.event === "remove" ? "" : showValue(event.value as Json)}</td>
                <td class="quiet">{event.peer ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
