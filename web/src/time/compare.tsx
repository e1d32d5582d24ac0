/** Two instants side by side: what was added, removed and changed, and the way back. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { NoJournal } from "../charts/charts";
import type { Json } from "../shared/bus";
import { DraftInput } from "../shared/draftinput";
import { readInstant, showExactInstant, showInstant, showValue } from "../shared/format";
import { PathText } from "../shared/pathfield";
import { bus, instant, maySetAny, putInLink, select, status, view } from "../shared/store";
import { type Difference, describeDifference, describeStep } from "./treediff";

/** The sides as they are written: an instant, an age, or "now". */
const a = signal("-10m");
const b = signal("now");
const rule = signal("**");
putInLink("a", a);
putInLink("b", b);
putInLink("of", rule);

/** Open the page with an instant on the left and the present on the right. */
export function compareWith(us: number): void {
  a.value = showExactInstant(us);
  b.value = "now";
  view.value = "compare";
}

interface Found {
  differences: Difference[];
  total: number;
  error?: string;
}

export function ComparePage() {
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  const [busy, setBusy] = useState(false);
  // An age is counted from the moment it was written, or the sides would move under the reader.
  const left = useMemo(() => readInstant(a.value, Date.now() * 1000), [a.value, round]);
  const right = useMemo(() => readInstant(b.value, Date.now() * 1000), [b.value, round]);
  const isValid = left !== null && right !== null;

  useEffect(() => {
    if (left === null || right === null || !status.value?.history) return;
    const stop = new AbortController();
    const sides = { a: String(left), rule: rule.value, ...(b.value === "now" ? {} : { b: String(right) }) };
    setBusy(true);
    const load = async () => {
      try {
        const response = await fetch(`api/differences?${new URLSearchParams(sides)}`, {
          signal: stop.signal,
        });
        const answer = (await response.json()) as Found;
        setFound(response.ok ? answer : null);
        setProblem(response.ok ? "" : (answer.error ?? "The past cannot be read."));
      } catch (failure) {
        if (!stop.signal.aborted) setProblem((failure as Error).message);
      }
      if (!stop.signal.aborted) setBusy(false);
    };
    const timer = setTimeout(load, 150);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [a.value, b.value, rule.value, round, status.value?.history]);

  if (!status.value?.history)
    return (
      <main class="page-body">
        <h2>Compare</h2>
        <NoJournal />
      </main>
    );
  return (
    <main class="page-body compare">
      <h2>Compare</h2>
      <form class="sides" onSubmit={(event) => event.preventDefault()}>
        <Side name="Before" text={a} />
        <Side name="After" text={b} />
        <label class="field">
          <span>Rule</span>
          <DraftInput
            value={rule.value}
            onDone={(text) => {
              rule.value = text.trim() || "**";
            }}
          />
        </label>
        <button type="button" class="chip" onClick={() => setRound(round + 1)}>
          Compare again
        </button>
      </form>
      {!isValid && <p class="hint problem">Write instants as 2026-03-01 12:00:00, -2h or now.</p>}
      {problem && <p class="hint problem">{problem}</p>}
      {b.value === "now" && left !== null && maySetAny() && (
        <Restore key={`${a.value} ${rule.value}`} until={left} onDone={() => setRound(round + 1)} />
      )}
      {isValid && found && !problem && <Differences found={found} busy={busy} />}
    </main>
  );
}

function Side({ name, text }: { name: string; text: typeof a }) {
  const at = readInstant(text.value, Date.now() * 1000);
  return (
    <div class="side">
      <label class="field">
        <span>{name}</span>
        <DraftInput
          value={text.value}
          aria-invalid={at === null}
          onDone={(written) => {
            text.value = written.trim();
          }}
        />
      </label>
      {instant.value !== null && (
        <button
          type="button"
          class="chip"
          onClick={() => {
            text.value = showExactInstant(instant.value as number);
          }}
        >
          Use the shown instant
        </button>
      )}
    </div>
  );
}

function Differences({ found, busy }: { found: Found; busy: boolean }) {
  const { differences, total } = found;
  if (total === 0)
    return (
      <div class="empty">
        <strong>Nothing differs.</strong>
        <p>All states that match have the same values at both instants.</p>
      </div>
    );
  return (
    <section aria-label="Differences" aria-busy={busy}>
      <p class="hint" role="status">
        {total} {total === 1 ? "difference" : "differences"}
        {total > differences.length ? `, the first ${differences.length} are listed` : ""}
      </p>
      <div class="scroll">
        <table class="differences">
          <thead>
            <tr>
              <th>Path</th>
              <th>What</th>
              <th class="num">Before</th>
              <th class="num">After</th>
              <th class="num">Change</th>
            </tr>
          </thead>
          <tbody>
            {differences.map((difference) => {
              const what = describeDifference(difference);
              return (
                <tr key={difference.path} class={what}>
                  <td>
                    <button
                      type="button"
                      class="link"
                      onClick={() => {
                        select(difference.path, true);
                        view.value = "tree";
                      }}
                    >
                      <PathText path={difference.path} />
                    </button>
                  </td>
                  <td>
                    <span class={`badge ${what}`}>{what}</span>
                  </td>
                  <td class="num mono">{what === "added" ? "" : showValue(difference.before)}</td>
                  <td class="num mono">{what === "removed" ? "" : showValue(difference.after)}</td>
                  <td class="num mono quiet">{describeStep(difference)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface Restorable {
  path: string;
  now: Json;
  then: Json;
}

/** What of it can be set back, and what became of each state that was. */
function Restore({ until, onDone }: { until: number; onDone(): void }) {
  const [at, setAt] = useState(until);
  const [list, setList] = useState<Restorable[] | null>(null);
  const [outcomes, setOutcomes] = useState<Record<string, string> | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const params = { rule: rule.value, instant: at };

  const look = async () => {
    setBusy(true);
    setAt(until);
    try {
      const found = (await bus.request("compare", { ...params, instant: until })) as unknown as {
        differences: Restorable[];
      };
      setList(found.differences);
      setProblem("");
    } catch (failure) {
      setProblem((failure as Error).message);
    }
    setBusy(false);
  };
  const restore = async () => {
    if (!list) return;
    setBusy(true);
    try {
      const paths = list.map((one) => one.path);
      setOutcomes((await bus.request("restore", { ...params, paths })) as Record<string, string>);
      onDone();
    } catch (failure) {
      setProblem((failure as Error).message);
    }
    setBusy(false);
  };
  const refused = Object.values(outcomes ?? {}).filter((outcome) => outcome.startsWith("refused")).length;
  const count = list?.length ?? 0;
  return (
    <section class="restore" aria-label="Restore">
      <div class="buttons">
        {!list && (
          <button type="button" onClick={look} disabled={busy}>
            Restore …
          </button>
        )}
        {list && !outcomes && (
          <>
            <button type="button" class="primary" onClick={restore} disabled={busy || count === 0}>
              {count === 0 ? "Nothing to set back" : `Set ${count} ${count === 1 ? "state" : "states"} back`}
            </button>
            <button type="button" onClick={() => setList(null)}>
              Cancel
            </button>
            <span class="hint">
              to the values of {showInstant(at)}. States that are read-only, or not there now or then, are
              left alone.
            </span>
          </>
        )}
        {outcomes && (
          <>
            <span role="status" class={refused ? "problem" : ""}>
              {Object.keys(outcomes).length - refused} set back{refused ? `, ${refused} refused` : ""}.
            </span>
            <button
              type="button"
              onClick={() => {
                setList(null);
                setOutcomes(null);
              }}
            >
              Close
            </button>
          </>
        )}
      </div>
      {problem && <p class="hint problem">{problem}</p>}
      {list && count > 0 && (
        <div class="scroll">
          <table class="differences">
            <thead>
              <tr>
                <th>Path</th>
                <th class="num">Now</th>
                <th class="num">Set back to</th>
                <th>{outcomes ? "Outcome" : <span class="hidden">Outcome</span>}</th>
              </tr>
            </thead>
            <tbody>
              {list.map(({ path, now, then }) => (
                <tr key={path}>
                  <td>
                    <PathText path={path} />
                  </td>
                  <td class="num mono">{showValue(now)}</td>
                  <td class="num mono">{showValue(then)}</td>
                  <td class={outcomes?.[path]?.startsWith("refused") ? "problem" : "quiet"}>
                    {outcomes?.[path] ?? ""}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
