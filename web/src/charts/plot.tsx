/**
 * Lines over time, drawn by uPlot.
 *
 * Each state has four columns: the last value of a bucket as a line that holds until the next one, its lowest and highest
 * value as an area, so that a spike of one sample stays visible however far one zooms out, and a red dot where a value
 * has no good quality. A null is a gap.
 */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { isDark } from "../shared/colours";
import { showNumber } from "../shared/format";
import type { Series } from "./history";
import { panRange, type Range, showTick, zoomRange } from "./range";

interface PlotProps {
  lines: { source: string; shade: number; series: Series }[];
  range: Range;
  height: number;
  ownScales: boolean;
  onRange(range: Range | null): void;
  /** The instant under the cursor, or null. */
  onCursor(instant: number | null): void;
}

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Join the columns of several states on one axis of time; undefined where a state has no entry. */
export function joinLines(lines: PlotProps["lines"], range: Range): uPlot.AlignedData {
  const tables = lines.map(({ series }) => {
    const { time, low, high, last, bad } = series;
    const end = last.length > 0 ? (last[last.length - 1] ?? null) : null;
    // The last value holds until the right edge, which may be in the future of what is recorded.
    return [
      [...time, range.until],
      [...last, end],
      [...low, end],
      [...high, end],
      [...last.map((value, index) => (bad[index] ? value : null)), null],
    ] as uPlot.AlignedData;
  });
  return tables.length === 1 ? (tables[0] as uPlot.AlignedData) : uPlot.join(tables);
}

function makeOptions(
  props: PlotProps,
  width: number,
  range: () => Range,
  notify: { current: PlotProps },
): uPlot.Options {
  const axis = {
    stroke: color("--quiet"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
  };
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  const scales: uPlot.Scales = {
    x: { time: true, range: () => [range().since, range().until] },
  };
  props.lines.forEach(({ shade }, index) => {
    const scale = props.ownScales ? `y${index}` : "y";
    scales[scale] = {};
    const common = { scale, points: { show: false } };
    series.push(
      {
        ...common,
        stroke: color(`--shade-${shade}`),
        width: 1.5,
        paths: uPlot.paths.stepped?.({ align: 1 }),
      },
      { ...common, stroke: "transparent" },
      { ...common, stroke: "transparent" },
      {
        scale,
        stroke: color("--problem"),
        paths: () => null,
        points: { show: true, size: 5, fill: color("--problem") },
      },
    );
    const low = 4 * index + 2;
    bands.push({ series: [low + 1, low], fill: color(`--shade-soft-${shade}`) });
  });
  return {
    width,
    height: props.height,
    cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
    legend: { show: false },
    scales,
    axes: [
      { ...axis, size: 32, values: (_plot, ticks) => ticks.map((tick) => showTick(tick, ticks)) },
      {
        ...axis,
        // The axis is that of the first line, and has its colour.
        stroke: props.ownScales ? color(`--shade-${props.lines[0]?.shade ?? 0}`) : axis.stroke,
        scale: props.ownScales ? "y0" : "y",
        size: 64,
        values: (_plot, ticks) => ticks.map(showNumber),
      },
    ],
    series,
    bands,
    hooks: {
      setSelect: [
        (plot) => {
          const { left, width: chosen } = plot.select;
          if (chosen < 4) return;
          const since = plot.posToVal(left, "x");
          const until = plot.posToVal(left + chosen, "x");
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          notify.current.onRange({ since, until });
        },
      ],
      setCursor: [
        (plot) => {
          const { left } = plot.cursor;
          notify.current.onCursor(
            left === undefined || left === null || left < 0 ? null : plot.posToVal(left, "x"),
          );
        },
      ],
    },
  };
}

export function Plot(props: PlotProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const lines = props.lines.map((line) => `${line.source}:${line.shade}`).join();
  const shape = `${lines} ${props.ownScales} ${isDark.value}`; // colours are read when the plot is made

  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const made = new uPlot(
      makeOptions(props, element.clientWidth || 600, () => latest.current.range, latest),
      [[], ...props.lines.flatMap(() => [[], [], [], []])] as unknown as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() =>
      made.setSize({ width: element.clientWidth, height: latest.current.height }),
    );
    observer.observe(element);
    const onWheel = (event: WheelEvent) => {
      const { range, onRange } = latest.current;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        onRange(panRange(range, (event.deltaX || event.deltaY) / (element.clientWidth || 600)));
        return;
      }
      const left = event.clientX - made.over.getBoundingClientRect().left;
      onRange(zoomRange(range, event.deltaY > 0 ? 1.25 : 0.8, made.posToVal(left, "x")));
    };
    made.over.addEventListener("wheel", onWheel, { passive: false });
    const onDouble = () => latest.current.onRange(null);
    made.over.addEventListener("dblclick", onDouble);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(joinLines(props.lines, props.range), true);
  }, [props.lines, props.range, shape]);

  return <div ref={box} class="lines" />;
}
