/**
 * The history of states as a chart that is live, and loads finer or coarser data as one zooms and pans.
 *
 * Numbers are lines, everything else is bands below them. While finer data is on its way, the known data is already
 * drawn in the new range.
 */

import type { Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { showInstant } from "../shared/format";
import { instant } from "../shared/store";
import { describeAt, hasMarks, mark, NOT_GOOD, SHADES, shadeValues, showBand } from "./bands";
import { type Band, exportAddress, type Loaded, loadHistory } from "./history";
import { Plot } from "./plot";
import { panRange, type Range, readShown, splitSource, writeShown, zoomRange } from "./range";

const SPANS: [string, number][] = [
  ["1 min", 60],
  ["10 min", 600],
  ["1 h", 3600],
  ["1 d", 86_400],
  ["7 d", 604_800],
];
const LIVE_MS = 1000;
const FORMATS = [
  ["csv", "CSV"],
  ["jsonl", "JSON lines"],
  ["parquet", "Parquet"],
] as const;

const middleOf = (range: Range) => (range.since + range.until) / 2;
const MOVES: [sign: string, name: string, move: (range: Range) => Range][] = [
  ["◀", "Earlier", (range) => panRange(range, -0.5)],
  ["▶", "Later", (range) => panRange(range, 0.5)],
  ["+", "Zoom in", (range) => zoomRange(range, 0.5, middleOf(range))],
  ["−", "Zoom out", (range) => zoomRange(range, 2, middleOf(range))],
];

/** Return the range of so many seconds that ends with the shown instant. */
function lastSeconds(seconds: number): Range {
  const until = instant.peek() === null ? Date.now() / 1000 : (instant.peek() as number) / 1e6;
  return { since: until - seconds, until };
}

interface ChartProps {
  /** Paths, or "path#member" for a member of a state whose value is an object. */
  sources: string[];
  height?: number;
  span?: number;
  /** The length or range of time that is shown as text, for charts that links show the same way. */
  shown?: Signal<string>;
  /** Begin with a scale for each line. */
  hasOwnScales?: boolean;
  /** Leave one out, if the reader may. */
  onRemove?: (source: string) => void;
  /** The range that is shown, whenever it has changed. */
  onRange?: (range: Range) => void;
  children?: preact.ComponentChildren;
}

export function HistoryChart({ sources, height = 220, span: firstSpan = 600, ...props }: ChartProps) {
  const [begin] = useState(() => readShown(props.shown?.peek() ?? ""));
  const [span, setSpan] = useState(begin && "span" in begin ? begin.span : firstSpan);
  const [zoom, setZoom] = useState<Range | null>(begin && "zoom" in begin ? begin.zoom : null);
  const [problem, setProblem] = useState("");
  const [loaded, setLoaded] = useState<Loaded[] | null>(null);
  const [drawn, setDrawn] = useState<Range>(() => zoom ?? lastSeconds(span));
  const [cursor, setCursor] = useState<number | null>(null);
  const [ownScales, setOwnScales] = useState(props.hasOwnScales ?? false);
  const box = useRef<HTMLDivElement>(null);
  const past = instant.value;
  const key = sources.join("\n");

  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const refresh = async () => {
      if (!document.hidden) {
        const wanted = zoom ?? lastSeconds(span);
        if (zoom) setDrawn(zoom);
        try {
          const pixels = box.current?.clientWidth || 600;
          const found = await Promise.all(
            sources.map((source) => loadHistory(source, wanted, pixels, stop.signal)),
          );
          setLoaded(found);
          setDrawn(wanted);
          setProblem("");
          props.onRange?.(wanted);
        } catch (failure) {
          if (!stop.signal.aborted) setProblem((failure as Error).message);
        }
      }
      if (!stop.signal.aborted && past === null && zoom === null) timer = window.setTimeout(refresh, LIVE_MS);
    };
    // A turn of the wheel is many events: only the range at its end is loaded.
    timer = window.setTimeout(refresh, zoom ? 60 : 0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, span, zoom, past]);

  useEffect(() => {
    if (props.shown) props.shown.value = zoom || span !== firstSpan ? writeShown(span, zoom) : "";
  }, [span, zoom]);

  const change = (range: Range | null) => {
    if (range) setDrawn(range);
    setZoom(range);
  };
  const shadeOf = (source: string) => Math.max(0, sources.indexOf(source)) % SHADES;
  const lines = (loaded ?? [])
    .filter((one) => one.series && one.series.time.length > 0 && sources.includes(one.source))
    .map((one) => ({
      source: one.source,
      shade: shadeOf(one.source),
      series: one.series as NonNullable<Loaded["series"]>,
    }));
  const isEmpty = loaded?.every((one) => one.series?.time.length === 0);
  return (
    <figure class="chart">
      <figcaption>
        <span class="what">History</span>
        <span class="spans" role="group" aria-label="Length of time">
          {SPANS.map(([name, seconds]) => (
            <button
              key={name}
              type="button"
              class="chip"
              aria-pressed={zoom === null && span === seconds}
              onClick={() => {
                setZoom(null);
                setSpan(seconds);
                setDrawn(lastSeconds(seconds));
              }}
            >
              {name}
            </button>
          ))}
        </span>
        {lines.length > 1 && (
          <button
            type="button"
            class="chip"
            aria-pressed={ownScales}
            onClick={() => setOwnScales(!ownScales)}
          >
            Own scales
          </button>
        )}
        <span class="spans" role="group" aria-label="Move">
          {MOVES.map(([sign, name, move]) => (
            <button
              key={name}
              type="button"
              class="chip"
              aria-label={name}
              onClick={() => change(move(drawn))}
            >
              {sign}
            </button>
          ))}
        </span>
        {zoom && (
          <button type="button" class="chip" onClick={() => setZoom(null)}>
            {past === null ? "Back to live" : "Whole range"}
          </button>
        )}
        {props.children}
      </figcaption>
      <div ref={box} class={`plot${loaded ? "" : " loading"}`}>
        {problem && <p class="hint problem">{problem}</p>}
        {!problem && isEmpty && <p class="empty small">No values were recorded in this time.</p>}
        {!problem && lines.length > 0 && (
          <Plot
            lines={lines}
            range={drawn}
            height={height}
            ownScales={ownScales}
            onRange={change}
            onCursor={setCursor}
          />
        )}
        {!problem &&
          loaded?.map(
            (one) =>
              one.bands && (
                <Bands
                  key={one.source}
                  bands={one.bands}
                  name={loaded.length > 1 ? one.source : ""}
                  range={drawn}
                  onCursor={setCursor}
                  onZoom={change}
                />
              ),
          )}
      </div>
      {!problem && loaded && !isEmpty && (
        <div class="foot">
          <Legend loaded={loaded} cursor={cursor} shadeOf={shadeOf} onRemove={props.onRemove} />
          <Exports sources={sources} range={drawn} />
        </div>
      )}
    </figure>
  );
}

function Exports({ sources, range }: { sources: string[]; range: Range }) {
  return (
    <span class="exports">
      <span class="quiet">Export</span>
      {FORMATS.map(([format, name]) => (
        <a key={format} href={exportAddress(sources, range, format)} download>
          {name}
        </a>
      ))}
    </span>
  );
}

interface LegendProps {
  loaded: Loaded[];
  cursor: number | null;
  shadeOf(source: string): number;
  onRemove?: (source: string) => void;
}

/** Each state with its value at the cursor, or its latest one. */
function Legend({ loaded, cursor, shadeOf, onRemove }: LegendProps) {
  return (
    <div class="cursor">
      <span class="hint at">{cursor === null ? "Latest" : showInstant(cursor * 1e6)}</span>
      <ul>
        {loaded.map((one) => {
          const { path, member } = splitSource(one.source);
          return (
            <li key={one.source}>
              <span class={`swatch shade-${one.bands ? "none" : shadeOf(one.source)}`} />
              {(loaded.length > 1 || member) && <span class="of">{member ? `${path} ${member}` : path}</span>}
              <span class="mono text">{describeAt(one, cursor)}</span>
              {onRemove && (
                <button
                  type="button"
                  class="icon"
                  aria-label={`Leave out ${one.source}`}
                  onClick={() => onRemove(one.source)}
                >
                  ×
                </button>
              )}
            </li>
          );
        })}
        {loaded.some(hasMarks) && (
          <li>
            <span class="swatch bad" />
            <span class="of">{NOT_GOOD}</span>
          </li>
        )}
      </ul>
    </div>
  );
}

interface BandsProps {
  bands: Band[];
  /** The state, where there are several. */
  name: string;
  range: Range;
  onCursor(instant: number | null): void;
  onZoom(range: Range): void;
}

function Bands({ bands, name, range, onCursor, onZoom }: BandsProps) {
  const length = range.until - range.since;
  const values = [...new Set(bands.map((band) => band.value))].filter(
    (value): value is string => value !== null,
  );
  const shades = shadeValues(values);
  const timeAt = (event: MouseEvent) => {
    const { left, width } = (event.currentTarget as Element).getBoundingClientRect();
    return range.since + ((event.clientX - left) / Math.max(width, 1)) * length;
  };
  return (
    <div class="bands">
      <svg
        width="100%"
        height="30"
        viewBox="0 0 1000 30"
        preserveAspectRatio="none"
        role="img"
        aria-label={name ? `Values of ${name} over time` : "Values over time"}
        onPointerMove={(event) => onCursor(timeAt(event))}
        onPointerLeave={() => onCursor(null)}
        onWheel={(event) => {
          event.preventDefault();
          onZoom(zoomRange(range, event.deltaY > 0 ? 1.25 : 0.8, timeAt(event)));
        }}
      >
        {bands.map((band, index) => {
          const until = bands[index + 1]?.from ?? range.until;
          const x = ((band.from - range.since) / length) * 1000;
          const width = Math.max(((until - band.from) / length) * 1000, 0.5);
          if (band.value === null || x > 1000 || x + width < 0) return null;
          return (
            <g key={band.from}>
              <rect class={`band shade-${shades.get(band.value)}`} x={x} y="2" width={width} height="22">
                <title>{mark(showBand(band.value), band.isBad, band.isLate)}</title>
              </rect>
              {band.isBad && <rect class="bad" x={x} y="26" width={width} height="4" />}
            </g>
          );
        })}
      </svg>
      <ul class="legend">
        {name && <li class="quiet">{name}</li>}
        {values.slice(0, 12).map((value) => (
          <li key={value}>
            <span class={`swatch shade-${shades.get(value)}`} />
            <span class="text">{showBand(value)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
