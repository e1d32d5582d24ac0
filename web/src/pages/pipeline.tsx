/** Pipelines as they publish themselves on the bus: how far they are, their alarms with charts, their rollups. */

import { useEffect, useState } from "preact/hooks";
import { HistoryChart } from "../charts/chart";
import { openInChart } from "../charts/charts";
import {
  type Alarm,
  countRollups,
  fieldsOf,
  findPipelines,
  numberOf,
  readAlarm,
  safeAddress,
  textOf,
} from "../shared/facts";
import { showAge, showInstant, showValue } from "../shared/format";
import { frame, live, liveTree, pinPaths, search, status, structure, view } from "../shared/store";

const ALARMS_SHOWN = 200;

export function PipelinePage() {
  structure.value;
  const prefixes = findPipelines(liveTree.paths());
  return (
    <main class="page-body">
      <h2>Pipeline</h2>
      {prefixes.length === 0 ? (
        <div class="empty">
          <strong>No pipeline publishes on this bus.</strong>
          <p>
            A pipeline that is started with <code>publish</code> appears here with its lag, its rollups and
            its alarms.
          </p>
        </div>
      ) : (
        prefixes.map((prefix) => <Pipeline key={prefix} prefix={prefix} />)
      )}
    </main>
  );
}

function Pipeline({ prefix }: { prefix: string }) {
  frame.value;
  const parts = ["batch", "lag", "rate", "ui"].map((name) => `${prefix}/pipeline/${name}`);
  const paths = [...liveTree.paths()];
  const alarms = paths
    .map((path) => readAlarm(prefix, path))
    .filter((alarm): alarm is Alarm => alarm !== null)
    .slice(0, ALARMS_SHOWN);
  const key = [...parts, ...alarms.map((alarm) => alarm.at)].join("\n");
  useEffect(() => {
    pinPaths(key.split("\n"));
    return () => pinPaths([]);
  }, [key]);
  const [batch, lag, rate] = parts.map((path) => fieldsOf(live.get(path)?.value));
  const address = safeAddress(live.get(`${prefix}/pipeline/ui`)?.value);
  const at = textOf(batch?.at);
  const facts: [string, string][] = [
    [
      "Batch",
      `${numberOf(batch?.number)}, ${numberOf(batch?.events)} events in ${numberOf(batch?.seconds).toFixed(2)} s`,
    ],
    ["Finished", at ? `${showAge(Date.now() - Date.parse(at))} ago` : "not yet"],
    ["Behind", `${numberOf(lag?.seconds).toFixed(1)} s, ${numberOf(lag?.events)} events`],
    ["Rate", `${Math.round(numberOf(rate?.events_per_s))} events/s`],
    ["Since start", `${numberOf(rate?.events)} events`],
  ];
  return (
    <section class="pipeline" aria-label={`Pipeline ${prefix}`}>
      <h3>
        {prefix}
        {address && (
          <a href={address} target="_blank" rel="noreferrer noopener">
            Spark UI
          </a>
        )}
      </h3>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {[...countRollups(prefix, paths)].map(([size, count]) => (
          <div key={size}>
            <dt>Rollups of {size}</dt>
            <dd>
              <button
                type="button"
                class="link"
                onClick={() => {
                  search(`${prefix}/rollups/${size}/**`);
                  view.value = "tree";
                }}
              >
                {count}
              </button>
            </dd>
          </div>
        ))}
      </dl>
      {status.value?.history && (
        <HistoryChart
          sources={[`${prefix}/pipeline/lag#seconds`, `${prefix}/pipeline/rate#events_per_s`]}
          height={160}
          hasOwnScales={true}
        />
      )}
      <Alarms alarms={alarms} />
    </section>
  );
}

function Alarms({ alarms }: { alarms: Alarm[] }) {
  const [open, setOpen] = useState<string | null>(null);
  const rows = alarms
    .map((alarm) => ({ alarm, state: fieldsOf(live.get(alarm.at)?.value) }))
    .sort((one, other) => Number(isRaised(other.state)) - Number(isRaised(one.state)));
  const raised = rows.filter((row) => isRaised(row.state)).length;
  if (rows.length === 0) return <p class="hint">No alarm has been raised so far.</p>;
  return (
    <section aria-label="Alarms">
      <h4>
        Alarms <span class="quiet">{raised === 0 ? "none raised" : `${raised} raised`}</span>
      </h4>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Alarm</th>
              <th>State</th>
              <th>Severity</th>
              <th>Path</th>
              <th class="num">Value</th>
              <th>Since</th>
              <th>
                <span class="hidden">Chart</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ alarm, state }) => (
              <tr key={alarm.at} class={isRaised(state) ? "raised" : ""}>
                <td>{alarm.name}</td>
                <td>
                  <span class={`badge ${isRaised(state) ? "alarm" : ""}`}>
                    {textOf(state.what) || "unknown"}
                  </span>
                </td>
                <td class="quiet">{textOf(state.severity)}</td>
                <td>{alarm.path}</td>
                <td class="num mono">{showValue(state.value)}</td>
                <td class="quiet">{showTime(textOf(isRaised(state) ? state.raised_at : state.ts))}</td>
                <td>
                  {status.value?.history && (
                    <>
                      <button
                        type="button"
                        class="chip"
                        aria-expanded={open === alarm.at}
                        aria-label={`Chart of ${alarm.path}`}
                        onClick={() => setOpen(open === alarm.at ? null : alarm.at)}
                      >
                        Chart
                      </button>
                      <button type="button" class="chip" onClick={() => openInChart(alarm.path)}>
                        Compare
                      </button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows
        .filter(({ alarm }) => alarm.at === open)
        .map(({ alarm }) => (
          <HistoryChart key={alarm.at} sources={[alarm.path, `${alarm.at}#what`]} height={180} />
        ))}
    </section>
  );
}

/** Return a time that a pipeline has written as that of the reader; other texts stay as they are. */
function showTime(text: string): string {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? text : showInstant(ms * 1000);
}

function isRaised(state: { [key: string]: unknown }): boolean {
  return state.what === "raised";
}
