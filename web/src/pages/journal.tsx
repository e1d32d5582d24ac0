/** The journal: its extent, size and rate, what it keeps, and where it has gaps. */

import { useEffect, useState } from "preact/hooks";
import { NoJournal } from "../charts/charts";
import type { HistoryEvent } from "../charts/history";
import {
  describeDetail,
  describeRetention,
  type Fields,
  fieldsOf,
  numberOf,
  rateBetween,
  type Sample,
  textOf,
} from "../shared/facts";
import { showAge, showBytes, showInstant } from "../shared/format";
import { frame, live, pinPaths, status } from "../shared/store";
import { Moment } from "../time/moment";

const STATS = "$jet/journal/stats";
const GAPS_SHOWN = 100;
const RATE_MS = 5000;

export function JournalPage() {
  frame.value;
  const [facts, setFacts] = useState<Fields | null>(null);
  const [problem, setProblem] = useState("");
  const [gaps, setGaps] = useState<HistoryEvent[]>([]);
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    pinPaths([STATS]);
    const load = () => {
      if (document.hidden) return;
      ask("api/journal").then(setFacts, (failure: Error) => setProblem(failure.message));
      const stats = fieldsOf(live.get(STATS)?.value);
      const sample = { ms: Date.now(), events: numberOf(stats.events), bytes: numberOf(stats.bytes) };
      if (sample.events) setSamples((known) => [...known.slice(-1), sample]);
    };
    load();
    ask(`api/events?events=gap,start,stop&newest=1&limit=${GAPS_SHOWN}`).then(
      (answer) => setGaps(answer.events as unknown as HistoryEvent[]),
      () => {},
    );
    const timer = setInterval(load, RATE_MS);
    return () => {
      clearInterval(timer);
      pinPaths([]);
    };
  }, []);
  const stats = fieldsOf(live.get(STATS)?.value);
  const rate = samples.length === 2 ? rateBetween(samples[0] ?? null, samples[1] as Sample) : null;
  const first = numberOf(facts?.first_ts);
  const last = numberOf(facts?.last_ts);
  const hasHistory = status.value?.history ?? true;
  if (!hasHistory)
    return (
      <main class="page-body">
        <h2>Journal</h2>
        <NoJournal />
      </main>
    );
  const rows: [string, string][] = facts
    ? [
        ["Bus", textOf(facts.bus)],
        ["Size", showBytes(numberOf(facts.bytes))],
        ["First event", first ? showInstant(first) : "none"],
        ["Last event", last ? showInstant(last) : "none"],
        ["Length", first ? showAge((last - first) / 1000) : "nothing"],
        ["Events", String(Math.max(0, numberOf(facts.last) - numberOf(facts.first) + 1))],
      ]
    : [];
  if (stats.events !== undefined) {
    rows.push(["Written since start", showBytes(numberOf(stats.bytes))]);
    rows.push([
      "Rate",
      rate ? `${Math.round(rate.events)} events/s, ${showBytes(rate.bytes)}/s` : "measuring",
    ]);
    rows.push(["Segments", String(numberOf(stats.segments))]);
    rows.push(["Waiting to be written", String(numberOf(stats.pending))]);
    rows.push(["Events missed", String(numberOf(stats.missed))]);
    rows.push(["Retention", describeRetention(stats)]);
  }
  return (
    <main class="page-body">
      <h2>Journal</h2>
      {problem && <p class="hint problem">{problem}</p>}
      {stats.problem ? <p class="hint problem">{textOf(stats.problem)}</p> : null}
      <dl class="facts">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {facts && <Gaps events={gaps} />}
    </main>
  );
}

const KINDS: Record<string, string> = {
  gap: "Events were lost",
  start: "Daemon started",
  stop: "Daemon stopped",
};

function Gaps({ events }: { events: HistoryEvent[] }) {
  return (
    <section aria-label="Gaps">
      <h3>Gaps, starts and stops</h3>
      {events.length === 0 ? (
        <p class="hint">None so far.</p>
      ) : (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Time</th>
                <th>What</th>
                <th>Detail</th>
              </tr>
            </thead>
            <tbody>
              {events.map((event) => (
                <tr key={event.seq}>
                  <td>
                    <Moment ts={event.ts} />
                  </td>
                  <td class={event.event === "gap" ? "problem" : ""}>{KINDS[event.event] ?? event.event}</td>
                  <td class="quiet">{describeDetail(event.detail ?? "")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

async function ask(address: string): Promise<Fields> {
  const response = await fetch(address);
  const answer = (await response.json()) as Fields;
  if (!response.ok) throw new Error(textOf(answer.error));
  return answer;
}
