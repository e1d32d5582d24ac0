/** The history of one state in its detail: a chart, its events, and the way to the page of charts. */

import { useState } from "preact/hooks";
import { HistoryChart } from "../charts/chart";
import { Events, openInChart, shownTime } from "../charts/charts";
import type { Range } from "../charts/range";
import type { Json } from "../shared/bus";
import { fieldsOf } from "../shared/facts";

/** Return the members of an object that are numbers, by the names that a chart takes. */
export function listMembers(value: Json, prefix = ""): string[] {
  return Object.entries(fieldsOf(value)).flatMap(([name, part]) => {
    if (name.includes(".") || name.includes("#")) return [];
    return typeof part === "number" ? [prefix + name] : listMembers(part, `${prefix}${name}.`);
  });
}

export function StateHistory({ path, value }: { path: string; value: Json }) {
  const [range, setRange] = useState<Range | null>(null);
  const [member, setMember] = useState("");
  const members = listMembers(value);
  const source = member && members.includes(member) ? `${path}#${member}` : path;
  return (
    <section aria-label="History">
      <HistoryChart sources={[source]} shown={shownTime} onRange={setRange}>
        {members.length > 0 && (
          <select
            class="member"
            aria-label="Part of the value to draw"
            value={member}
            onChange={(event) => {
              setMember(event.currentTarget.value);
            }}
          >
            <option value="">whole value</option>
            {members.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        )}
        <button
          type="button"
          class="chip"
          title="Show it in the page of charts, next to others"
          onClick={() => openInChart(source)}
        >
          Compare
        </button>
      </HistoryChart>
      {range && <Events sources={[path]} range={range} />}
    </section>
  );
}
