import { describe, expect, it } from "vitest";
import { describeAt, hasMarks, shadeValues, showBand } from "../src/charts/bands";
import {
  indexAt,
  panRange,
  readShown,
  showTick,
  splitSource,
  writeShown,
  zoomRange,
} from "../src/charts/range";
import {
  countRollups,
  describeDetail,
  describeRetention,
  findPipelines,
  rateBetween,
  readAlarm,
  safeAddress,
} from "../src/shared/facts";
import { readInstant, showExactInstant } from "../src/shared/format";
import { describeDifference, describeStep } from "../src/time/treediff";

describe("ranges of a chart", () => {
  it("keep the instant under the pointer in its place while zooming", () => {
    const zoomed = zoomRange({ since: 100, until: 200 }, 0.5, 125);
    expect(zoomed).toEqual({ since: 112.5, until: 162.5 });
    expect(zoomRange(zoomed, 2, 125)).toEqual({ since: 100, until: 200 });
  });

  it("have a shortest and a longest length", () => {
    const short = zoomRange({ since: 0, until: 0.001 }, 0.001, 0);
    expect(short.until - short.since).toBeCloseTo(0.001);
    const long = zoomRange({ since: 0, until: 1e12 }, 10, 0);
    expect(long.until - long.since).toBeLessThan(4e9);
  });

  it("move by a part of their length", () => {
    expect(panRange({ since: 100, until: 200 }, -0.5)).toEqual({ since: 50, until: 150 });
  });

  it("find the entry that is in force", () => {
    const times = [10, 20, 30];
    expect([5, 10, 25, 30, 99].map((at) => indexAt(times, at))).toEqual([-1, 0, 1, 2, 2]);
    expect(indexAt([], 1)).toBe(-1);
  });

  it("are written into links and read from them", () => {
    const zoom = { since: 1_700_000_000.25, until: 1_700_000_060 };
    expect(readShown(writeShown(600, null))).toEqual({ span: 600 });
    expect(readShown(writeShown(600, zoom))).toEqual({ zoom });
    expect(["", "soon", "-5", "9,2", "1,2,3", "1,"].map(readShown)).toEqual(Array(6).fill(null));
  });

  it("label ticks as finely as needed", () => {
    const noon = new Date(2026, 2, 1, 12, 0, 7, 50).getTime() / 1000;
    expect(showTick(noon, [noon, noon + 3600])).toBe("12:00");
    expect(showTick(noon, [noon, noon + 5])).toBe("12:00:07");
    expect(showTick(noon, [noon, noon + 0.1])).toBe("07.050");
    expect(showTick(noon, [noon, noon + 86_400])).toBe("2026-03-01");
  });
});

describe("names in a chart", () => {
  it("may lead to a member of a value", () => {
    expect(splitSource("spark/lag#seconds")).toEqual({ path: "spark/lag", member: "seconds" });
    expect(splitSource("plain/path")).toEqual({ path: "plain/path", member: "" });
  });
});

describe("instants as people write them", () => {
  const now = 1_800_000_000_000_000;
  it("are dates, ages or now", () => {
    expect(readInstant("-2h", now)).toBe(now - 7_200_000_000);
    expect(readInstant("−90 s", now)).toBe(now - 90_000_000);
    expect(readInstant("now", now)).toBe(now);
    expect(readInstant("2026-03-01 12:00:00.5", now)).toBe(
      new Date(2026, 2, 1, 12, 0, 0, 500).getTime() * 1000,
    );
    expect(readInstant("2026-03-01", now)).toBe(new Date(2026, 2, 1).getTime() * 1000);
    expect(readInstant("2026-03-01T12:00:00Z", now)).toBe(Date.UTC(2026, 2, 1, 12) * 1000);
  });
  it("are written to the microsecond where they are read again", () => {
    for (const us of [1_763_000_000_123_456, 1_763_000_000_000_007, 1_763_000_000_999_999])
      expect(readInstant(showExactInstant(us), now)).toBe(us);
    expect(readInstant("2026-03-01T12:00:00.000250Z", now)).toBe(Date.UTC(2026, 2, 1, 12) * 1000 + 250);
  });
  it("are nothing else", () => {
    for (const text of ["soon", "", "12:00", "-2 parsecs", "2026-99-99"])
      expect(readInstant(text, now)).toBe(null);
  });
});

describe("what pipelines publish", () => {
  const paths = [
    "spark/pipeline/batch",
    "spark/alarms/hot/demo/plant/tank/temp",
    "spark/rollups/1s/demo/a",
    "spark/rollups/1s/demo/b",
    "spark/rollups/1m/demo/a",
    "other/pipeline/lag",
  ];
  it("is found by its paths", () => {
    expect(findPipelines(paths)).toEqual(["spark"]);
    expect([...countRollups("spark", paths)]).toEqual([
      ["1s", 2],
      ["1m", 1],
    ]);
    expect(readAlarm("spark", paths[1] as string)).toEqual({
      at: paths[1],
      name: "hot",
      bus: "demo",
      path: "plant/tank/temp",
    });
    expect(readAlarm("spark", "spark/alarms/short")).toBe(null);
  });
  it("links to web pages only", () => {
    expect(safeAddress("http://localhost:4040")).toBe("http://localhost:4040");
    expect(safeAddress("javascript:alert(1)")).toBe(null);
    expect(safeAddress(undefined)).toBe(null);
  });
});

describe("values at the cursor", () => {
  const series = {
    time: [10, 20, 30],
    last: [1, null, 3],
    low: [0, null, 3],
    high: [5, null, 3],
    bad: [0, 0, 2],
    late: [1, 0, 0],
    count: 9,
  };
  it("come with the extremes of their bucket, and are nothing in a gap", () => {
    const at = (instant: number | null) => describeAt({ source: "a", series, bands: null }, instant);
    expect([5, 10, 25, 30, null].map(at)).toEqual([
      "–",
      "1 (0 to 5), came late",
      "–",
      "3, quality not good",
      "3, quality not good",
    ]);
  });
  it("are the band that is in force", () => {
    const bands = [
      { from: 10, value: '"auto"', isBad: false, isLate: false },
      { from: 20, value: null, isBad: false, isLate: false },
      { from: 30, value: "true", isBad: true, isLate: true },
    ];
    const at = (instant: number | null) => describeAt({ source: "a", series: null, bands }, instant);
    expect([5, 15, 25, 35].map(at)).toEqual(["–", "auto", "–", "true, quality not good, came late"]);
    expect(hasMarks({ source: "a", series: null, bands })).toBe(true);
    expect(hasMarks({ source: "a", series: null, bands: bands.slice(0, 2) })).toBe(false);
  });
  it("are written as people read them", () => {
    const texts = ['"auto"', "12.5", "false", '{"mime":"text/plain","base64":"YWJj"}', '{"a":1}'];
    expect(texts.map(showBand)).toEqual(["auto", "12.5", "false", "text/plain, 3 B", '{"a":1}']);
  });
  it("have colours of their own, and off is pale", () => {
    const shades = shadeValues(["true", "false", '"a"', '"b"', '"c"']);
    expect(shades.get("false")).toBe("pale");
    expect(new Set(shades.values()).size).toBe(5);
  });
});

describe("differences", () => {
  it("are named, and numbers have a step", () => {
    expect(describeDifference({ path: "a", after: 1 })).toBe("added");
    expect(describeDifference({ path: "a", before: 1 })).toBe("removed");
    expect(describeDifference({ path: "a", before: 1, after: null })).toBe("changed");
    expect(describeStep({ path: "a", before: 1, after: 3.5 })).toBe("+2.5");
    expect(describeStep({ path: "a", before: 3, after: 1 })).toBe("−2");
    expect(describeStep({ path: "a", before: "x", after: 1 })).toBe("");
  });
});

describe("the journal", () => {
  it("has a rate between two samples", () => {
    const before = { ms: 1000, events: 100, bytes: 1000 };
    expect(rateBetween(before, { ms: 3000, events: 300, bytes: 5000 })).toEqual({ events: 100, bytes: 2000 });
    expect(rateBetween(null, before)).toBe(null);
    expect(rateBetween(before, { ms: 3000, events: 0, bytes: 0 })).toBe(null);
  });
  it("says what it keeps", () => {
    expect(describeRetention({})).toBe("unlimited");
    expect(describeDetail('{"version":"1.2","restart":true}')).toBe("version 1.2, restart true");
    expect(describeDetail("half")).toBe("half");
    expect(describeRetention({ keep_bytes: 5_000_000, keep_s: 86_400 })).toBe("5.0 MB at most, for 1 d");
  });
});
