import { describe, expect, it } from "vitest";
import { readNumber } from "../src/forms/fields";
import { isSame } from "../src/forms/form";
import { checkArguments, readOwners } from "../src/shared/answers";
import { asBlob, showAge, showAgo, showBytes, showNumber, showRate, showValue } from "../src/shared/format";
import { sparkPath } from "../src/tree/sparkline";

describe("values", () => {
  it.each([
    [1500, "1500"],
    [0.1 + 0.2, "0.3"],
    [1234.56789, "1234.568"],
    [1e-7, "1.0000e-7"],
    [1.5e12, "1500000000000"],
  ])("shows the number %s as %s", (value, text) => expect(showNumber(value)).toBe(text));

  it("shows everything in one line", () => {
    expect(showValue(null)).toBe("null");
    expect(showValue({ a: [1] })).toBe('{"a":[1]}');
    expect(showValue("text")).toBe("text");
    expect(showValue({ mime: "image/png", base64: "AAAA" })).toBe("image/png, 3 B");
    expect(asBlob({ mime: "a", base64: "b", more: 1 })).toBeNull();
  });
});

describe("times and sizes", () => {
  it("shows ages, rates and sizes in short units", () => {
    expect([50, 1900, 59_000].map(showAgo)).toEqual(["now", "1 s", "59 s"]);
    expect([50, 59_000, 3_000_000, 8e7, 9e8].map(showAge)).toEqual([
      "0.1 s",
      "59 s",
      "50 min",
      "22 h",
      "10 d",
    ]);
    expect([0, 0.4, 33.3].map(showRate)).toEqual(["", "0.4/s", "33/s"]);
    expect([12, 1500, 2.5e9].map(showBytes)).toEqual(["12 B", "1.5 KB", "2.5 GB"]);
  });
});

describe("the form", () => {
  it("reads numbers, and nothing else as one", () => {
    expect(["1", "-2.5", "+3e2", ".5"].map(readNumber)).toEqual([1, -2.5, 300, 0.5]);
    expect(["", "x", "1,5", "0x10", "1e999", "--1"].map(readNumber)).toEqual([
      null,
      null,
      null,
      null,
      null,
      null,
    ]);
  });
  it("compares values as JSON", () => expect(isSame({ a: [1, null] }, { a: [1, null] })).toBe(true));
});

it("draws a constant value as a line in the middle", () => {
  expect(sparkPath([5, 5], 10, 10)).toBe("M0.0 5.0L10.0 5.0");
});

it("reads the owner in the answers of daemons", () => {
  expect(readOwners([{ path: "a", owner: "plant#1" }, 7, { path: "b" }])).toEqual(
    new Map([["a", "plant#1"]]),
  );
  expect(readOwners("nothing").size).toBe(0);
});

it("takes arguments as an array or an object", () => {
  expect(["", "[1]", '{"a": 1}'].map(checkArguments)).toEqual(["", "", ""]);
  expect(checkArguments("3")).toBe("Arguments are an array, or an object of named ones.");
  expect(checkArguments("[")).toContain("This is not JSON");
});
