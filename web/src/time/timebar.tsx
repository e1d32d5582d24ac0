/** The time of the whole page: live, any instant of the journal, or the past played like a film. */

import { useEffect, useState } from "preact/hooks";
import { readInstant, showInstant } from "../shared/format";
import { instant, status, travel, view } from "../shared/store";
import { compareWith } from "./compare";
import { play, playProblem, SPEEDS, speed, stop } from "./play";

interface Extent {
  first_ts: number | null;
  last_ts: number | null;
  now: number | null;
}

const STEPS = 1000;

export function TimeBar() {
  const [extent, setExtent] = useState<Extent | null>(null);
  const [problem, setProblem] = useState("");
  const hasHistory = status.value?.history ?? false;

  useEffect(() => {
    if (!hasHistory) return;
    const load = () => {
      if (document.hidden) return;
      fetch("api/journal")
        .then((response) => (response.ok ? response.json() : null))
        .then((found) => setExtent(found as Extent | null))
        .catch(() => {});
    };
    load();
    const timer = setInterval(load, 5000);
    return () => clearInterval(timer);
  }, [hasHistory]);

  if (!hasHistory || !extent?.first_ts) return null;
  const first = extent.first_ts;
  const last = Math.max(extent.now ?? 0, extent.last_ts ?? 0, first + 1);
  const at = instant.value;
  const go = (to: number | null) => {
    stop();
    return travel(to).then(
      () => setProblem(""),
      (failure: Error) => setProblem(failure.message),
    );
  };
  const said = problem || playProblem.value;
  return (
    <footer class="timebar">
      <button type="button" class="chip" aria-pressed={at === null} onClick={() => go(null)}>
        Live
      </button>
      <input
        type="range"
        aria-label="Instant"
        min={0}
        max={STEPS}
        step={1}
        value={at === null ? STEPS : Math.round(((at - first) / (last - first)) * STEPS)}
        aria-valuetext={at === null ? "live" : showInstant(at)}
        onChange={(event) => {
          const part = Number(event.currentTarget.value) / STEPS;
          go(part === 1 ? null : Math.round(first + (last - first) * part));
        }}
      />
      {at !== null && <Player first={first} />}
      <Clock at={at} onGo={(to) => go(to)} onProblem={setProblem} />
      {said && <output class="hint problem">{said}</output>}
    </footer>
  );
}

/** One line above everything that nobody can overlook: this is not the present. */
export function PastBanner() {
  const at = instant.value;
  if (at === null) return null;
  return (
    <p class="past-banner" role="status">
      <strong>{speed.value ? `Playing the past, ${speed.value}×` : "The past"}</strong>{" "}
      <span class="at">{showInstant(at)}</span>
      <button
        type="button"
        class="link"
        onClick={() => {
          stop();
          travel(null);
        }}
      >
        Return to the present
      </button>
    </p>
  );
}

/** Buttons of the past: step, play, compare with now. */
function Player({ first }: { first: number }) {
  const at = instant.value as number;
  const step = (seconds: number) => {
    stop();
    travel(Math.max(first, Math.min(at + seconds * 1e6, Date.now() * 1000))).catch(() => {});
  };
  return (
    <span class="player" role="group" aria-label="Play the past">
      <button type="button" class="chip" onClick={() => step(-10)} aria-label="Back 10 seconds">
        −10 s
      </button>
      <button type="button" class="chip" disabled={speed.value === 0} onClick={stop}>
        Pause
      </button>
      {SPEEDS.map((times) => (
        <button
          key={times}
          type="button"
          class="chip"
          aria-pressed={speed.value === times}
          aria-label={`Play ${times} times as fast`}
          onClick={() => play(times, () => Date.now() * 1000)}
        >
          {times}×
        </button>
      ))}
      <button type="button" class="chip" onClick={() => step(10)} aria-label="Forward 10 seconds">
        +10 s
      </button>
      {view.value !== "compare" && (
        <button type="button" class="chip" onClick={() => compareWith(at)}>
          Compare with now
        </button>
      )}
    </span>
  );
}

interface ClockProps {
  at: number | null;
  onGo(to: number): void;
  onProblem(problem: string): void;
}

/** The instant as text, which may be typed over. */
function Clock({ at, onGo, onProblem }: ClockProps) {
  const [text, setText] = useState<string | null>(null);
  return (
    <form
      class="clock"
      onSubmit={(event) => {
        event.preventDefault();
        const to = text === null ? null : readInstant(text, Date.now() * 1000);
        if (text !== null && to === null)
          onProblem(`${text} is not an instant: write 2026-03-01 12:00:00 or -2h.`);
        else if (to !== null) onGo(to);
        setText(null);
      }}
    >
      <input
        type="text"
        aria-label="Go to a time"
        placeholder="Now"
        title="An instant such as 2026-03-01 12:00:00, or an age such as -2h"
        spellcheck={false}
        autocomplete="off"
        value={text ?? (at === null ? "" : showInstant(at))}
        onInput={(event) => setText(event.currentTarget.value)}
        onBlur={() => setText(null)}
      />
    </form>
  );
}
