/** The tiles of a board: one small view of an element for each kind. */

import { useState } from "preact/hooks";
import { HistoryChart } from "../charts/chart";
import { isAbnormal, rangeOf, showPrecise } from "../forms/schema";
import { checkArguments } from "../shared/answers";
import type { Json } from "../shared/bus";
import { showValue, typeName } from "../shared/format";
import { ageOf, bus, frame, instant, metaOf, schemas, shownTree, shownValue, status } from "../shared/store";
import { Sparkline } from "../tree/sparkline";
import { METHOD, READ_ONLY } from "../tree/tree";
import { Badges } from "../tree/treegrid";
import type { Tile } from "./board";
import { gaugeArc, gaugePoint } from "./gauge";

export const TABLE_ROWS_MAX = 100;

/** Return the paths whose values a tile shows. */
export function tilePaths(tile: Tile): string[] {
  const tree = shownTree();
  if (tile.kind === "table" && !tree.find(tile.path)) return tree.listBelow(tile.path, TABLE_ROWS_MAX);
  return [tile.path];
}

/** Show what a tile is for, or why there is nothing to show. */
export function TileBody({ tile }: { tile: Tile }) {
  frame.value;
  const paths = tilePaths(tile);
  const node = shownTree().find(tile.path);
  if (tile.kind === "table") {
    if (paths.length === 0) return <Absent />;
    return node ? <MembersTable path={tile.path} /> : <StatesTable paths={paths} below={tile.path} />;
  }
  if (!node) return <Absent />;
  const View = VIEWS[tile.kind];
  return <View tile={tile} flags={node.flags ?? 0} />;
}

function Absent() {
  return <p class="absent">{instant.value === null ? "Not on the bus" : "Was not on the bus then"}</p>;
}

interface TileProps {
  tile: Tile;
  flags: number;
}

function ValueTile({ tile, flags }: TileProps) {
  const data = shownValue(tile.path);
  const schema = schemas.get(tile.path);
  return (
    <>
      <p class={`reading ${typeName(data?.value)}`}>
        <span class="text">{data ? showPrecise(data.value, schema) : "–"}</span>
        {schema?.unit && <span class="unit">{schema.unit}</span>}
      </p>
      <p class="below">
        <Badges
          flags={flags & ~READ_ONLY}
          isAbnormal={isAbnormal(data?.value, schema)}
          reason={metaOf(tile.path).reason}
        />
        {data && <span class="age">{ageOf(tile.path, data)}</span>}
        {data && data.numbers.length > 1 && <Sparkline numbers={data.numbers} />}
      </p>
    </>
  );
}

function GaugeTile({ tile }: TileProps) {
  const data = shownValue(tile.path);
  const schema = schemas.get(tile.path);
  const value = typeof data?.value === "number" ? data.value : null;
  const seen = data?.numbers ?? [];
  const range = rangeOf(schema) ?? guessRange(value ?? 0, seen);
  const [low, high] = range;
  const part = value === null ? 0 : Math.max(0, Math.min(1, (value - low) / (high - low)));
  const normal = schema?.normal;
  const place = (at: number) => Math.max(0, Math.min(1, (at - low) / (high - low)));
  const needle = gaugePoint(part);
  return (
    <div class="gauge">
      <svg
        viewBox="0 0 200 140"
        role="img"
        aria-label={`${tile.path} ${showPrecise(value, schema)} of ${low} to ${high}`}
      >
        <path class="scale" d={gaugeArc(0, 1)} />
        {normal && <path class="normal" d={gaugeArc(place(normal[0]), place(normal[1]), 12)} />}
        {part > 0 && <path class={isAbnormal(value, schema) ? "level off" : "level"} d={gaugeArc(0, part)} />}
        {value !== null && <circle class="needle" cx={needle[0]} cy={needle[1]} r="5" />}
        <text class="middle" x="100" y="90">
          {value === null ? "–" : showPrecise(value, schema)}
        </text>
        <text class="caption" x="100" y="110">
          {schema?.unit ?? ""}
        </text>
        <text class="end" x="38" y="138">
          {showValue(low)}
        </text>
        <text class="end" x="162" y="138">
          {showValue(high)}
        </text>
      </svg>
    </div>
  );
}

/** Return a round range for a number of which no range is known. */
export function guessRange(value: number, seen: number[]): [low: number, high: number] {
  const most = Math.max(Math.abs(value), ...seen.map(Math.abs), 1e-9);
  const step = 10 ** Math.floor(Math.log10(most));
  const high = Math.ceil((most * 1.05) / step) * step;
  return [value < 0 || seen.some((one) => one < 0) ? -high : 0, high];
}

function ChartTile({ tile }: TileProps) {
  const data = shownValue(tile.path);
  if (status.value?.history) return <HistoryChart sources={[tile.path]} height={180} />;
  if (!data || data.numbers.length < 2) return <p class="absent">Waiting for changes</p>;
  return <Sparkline numbers={data.numbers} width={480} height={160} />;
}

/** Run a set or a call, and remember what became of it. */
function useAction(): [string, boolean, boolean, (act: () => Promise<string>) => void] {
  const [answer, setAnswer] = useState<{ text: string; failed: boolean }>({ text: "", failed: false });
  const [busy, setBusy] = useState(false);
  const run = (act: () => Promise<string>) => {
    setBusy(true);
    act()
      .then(
        (text) => setAnswer({ text, failed: false }),
        (problem: Error) => setAnswer({ text: problem.message, failed: true }),
      )
      .finally(() => setBusy(false));
  };
  return [answer.text, answer.failed, busy, run];
}

function SwitchTile({ tile, flags }: TileProps) {
  const [text, failed, busy, run] = useAction();
  const value = shownValue(tile.path)?.value;
  const canSet = (flags & READ_ONLY) === 0 && instant.value === null && typeof value === "boolean";
  return (
    <>
      <label class="toggle">
        <input
          type="checkbox"
          role="switch"
          aria-label={tile.path}
          aria-checked={value === true}
          checked={value === true}
          disabled={!canSet || busy}
          onChange={(event) => {
            // The switch shows the state, and turns when the state does.
            event.currentTarget.checked = value === true;
            run(async () => {
              await bus.request("set", { path: tile.path, value: value !== true });
              return "";
            });
          }}
        />
        <span>{value === true ? "On" : value === false ? "Off" : showValue(value)}</span>
      </label>
      <p class={failed ? "below problem" : "below"} role="status">
        {text || ((flags & READ_ONLY) !== 0 ? "read-only" : "")}
      </p>
    </>
  );
}

function ButtonTile({ tile, flags }: TileProps) {
  const [text, failed, busy, run] = useAction();
  const isMethod = (flags & METHOD) !== 0;
  const sends = tile.sends ?? (isMethod ? "[]" : "");
  const problem = isMethod ? checkArguments(sends) : checkSent(sends);
  const mayAct = (flags & READ_ONLY) === 0 && instant.value === null;
  const act = async () => {
    const given = JSON.parse(sends || "[]") as Json;
    if (!isMethod) {
      await bus.request("set", { path: tile.path, value: given });
      return "Set.";
    }
    const { result, ms } = (await bus.request("call", { path: tile.path, args: given })) as {
      result: Json;
      ms: number;
    };
    return `${showValue(result)} in ${ms.toFixed(1)} ms`;
  };
  return (
    <>
      <button
        type="button"
        class="primary press"
        disabled={!mayAct || busy || problem !== ""}
        onClick={() => run(act)}
      >
        {isMethod ? "Call" : `Set to ${sends || "…"}`}
      </button>
      <p class={failed ? "below problem" : "below"} role="status">
        {text || (mayAct ? problem : isMethod ? "You may not call it" : "read-only")}
      </p>
    </>
  );
}

/** Return what is wrong with the value that a button sets, or nothing. */
export function checkSent(text: string): string {
  if (!text.trim()) return "Edit the board to say which value it sets.";
  try {
    JSON.parse(text);
    return "";
  } catch {
    return "The value that it sets is not JSON.";
  }
}

function MembersTable({ path }: { path: string }) {
  const value = shownValue(path)?.value;
  const rows =
    typeof value === "object" && value !== null
      ? Object.entries(value)
      : value === undefined
        ? []
        : [["", value]];
  return (
    <div class="scroll table">
      <table>
        <tbody>
          {rows.slice(0, TABLE_ROWS_MAX).map(([name, part]) => (
            <tr key={name as string}>
              <th scope="row">{name as string}</th>
              <td class="num mono">{showValue(part as Json)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function StatesTable({ paths, below }: { paths: string[]; below: string }) {
  const tree = shownTree();
  return (
    <div class="scroll table">
      <table>
        <tbody>
          {paths
            .filter((path) => ((tree.find(path)?.flags ?? 0) & METHOD) === 0)
            .map((path) => {
              const data = shownValue(path);
              const schema = schemas.get(path);
              return (
                <tr key={path}>
                  <th scope="row" title={path}>
                    {path.slice(below.length + 1)}
                  </th>
                  <td class="num mono">{data ? showPrecise(data.value, schema) : ""}</td>
                  <td class="unit">{schema?.unit ?? ""}</td>
                  <td class="num quiet">{data ? ageOf(path, data) : ""}</td>
                </tr>
              );
            })}
        </tbody>
      </table>
    </div>
  );
}

const VIEWS = {
  value: ValueTile,
  gauge: GaugeTile,
  chart: ChartTile,
  switch: SwitchTile,
  button: ButtonTile,
};
