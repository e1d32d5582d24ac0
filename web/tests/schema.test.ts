import { describe, expect, it } from "vitest";
import { listDifferences, showStep } from "../src/detail/difference";
import { argsOf, checkRows, readArgument, rowsOf, writeArgument } from "../src/forms/call";
import { refusedMember } from "../src/forms/form";
import {
  applyEdits,
  checkValue,
  emptyValue,
  fieldKind,
  isAbnormal,
  memberNames,
  rangeOf,
  readSchema,
  showPrecise,
  showType,
} from "../src/forms/schema";
import { rankItems } from "../src/palette/rank";
import { listSnippets, quoteShell, showPython } from "../src/shared/copy";

describe("schemas", () => {
  it("are read with care", () => {
    expect(readSchema("a pressure")).toEqual({ description: "a pressure" });
    expect(readSchema(null)).toBeUndefined();
    expect(readSchema({ unit: 7, minimum: "x", normal: [1], enum: [], readOnly: "yes" })).toEqual({});
    expect(readSchema({ args: ["number", { type: "string" }] })).toEqual({
      args: [{ type: "number" }, { type: "string" }],
    });
  });

  it("choose the field", () => {
    expect(fieldKind(1, { enum: [1, 2] })).toBe("choice");
    expect(fieldKind(true, undefined)).toBe("switch");
    expect(fieldKind("x", { type: "number" })).toBe("text"); // the value is not what it should be
    expect(fieldKind(null, { type: "number" })).toBe("number");
    expect(fieldKind({ a: 1 }, undefined)).toBe("members");
    expect(fieldKind([1], undefined)).toBe("json");
    expect(fieldKind({ mime: "image/png", base64: "AA" }, undefined)).toBe("json");
    expect(memberNames({ b: 1, c: 2 }, { properties: { a: {}, b: {} } })).toEqual(["a", "b", "c"]);
  });

  it("name the member that is wrong", () => {
    const schema = readSchema({
      properties: { low: { type: "integer", minimum: 0, unit: "rpm" }, mode: { enum: ["a"] } },
      required: ["name"],
    });
    expect([...checkValue({ low: -1, mode: "b" }, schema)]).toEqual([
      ["/name", "name is missing."],
      ["/low", "At least 0 rpm."],
      ["/mode", "b is none of a."],
    ]);
    expect(checkValue({ low: 1.5, name: "" }, schema).get("/low")).toBe("1.5 is not a whole number.");
    expect(checkValue(7, undefined).size).toBe(0);
  });

  it("show values, ranges and what is not normal", () => {
    expect(showPrecise(1.256, { precision: 1 })).toBe("1.3");
    expect(isAbnormal(7, { normal: [0, 5] })).toBe(true);
    expect(isAbnormal("x", { normal: [0, 5] })).toBe(false);
    expect(rangeOf({ normal: [0, 5], maximum: 9 })).toEqual([0, 9]);
    expect(rangeOf({ minimum: 5 })).toBeNull();
    expect(
      emptyValue({ type: "object", required: ["a"], properties: { a: { type: "integer", minimum: 3 } } }),
    ).toEqual({ a: 3 });
  });
});

describe("edits", () => {
  it("replace single members and leave the others to the bus", () => {
    const edits = new Map<string, never>([["/a~1b/c", 9 as never]]);
    expect(applyEdits({ "a/b": { c: 1, d: 2 }, e: 3 }, edits)).toEqual({ "a/b": { c: 9, d: 2 }, e: 3 });
    expect(applyEdits(1, new Map([["", 2]]))).toBe(2);
  });

  it("are refused at the member that the refusal names", () => {
    expect(refusedMember({ data: { valueRefused: "value.limits.low" } })).toBe("/limits/low");
    expect(refusedMember({ data: { valueRefused: "value.tags[2]" } })).toBe("/tags");
    expect(refusedMember({ data: { valueRefused: "value" } })).toBe("");
    expect(refusedMember({ data: null })).toBe("");
  });
});

it("lists differences by member", () => {
  expect(listDifferences({ a: 1, b: { c: [1] } }, { b: { c: [2] }, d: 3 })).toEqual([
    { member: "a", before: 1, after: undefined },
    { member: "b.c.0", before: 1, after: 2 },
    { member: "d", before: undefined, after: 3 },
  ]);
  expect([showStep(1, 3.5), showStep(3, 1), showStep("a", 1)]).toEqual(["+2.5", "−2", ""]);
});

describe("methods of Python", () => {
  const told = {
    title: "Run the pump",
    properties: {
      seconds: { type: ["number", "null"] },
      mode: { enum: ["once", "always"], default: "always" },
    },
    required: ["seconds"],
    result: { type: "array", items: { title: "Step", type: "object" } },
  };
  const schema = readSchema(told);
  it("have fields by the types of their arguments, which begin with the defaults", () => {
    expect(fieldKind(undefined, schema?.properties?.seconds)).toBe("number");
    expect(emptyValue(schema?.properties?.mode)).toBe("always");
    expect([...checkValue({ mode: "never" }, schema).keys()]).toEqual(["/seconds", "/mode"]);
  });
  it("say in words what they take and return", () => {
    expect(showType(schema?.result)).toBe("list of Step");
    expect(showType(schema?.properties?.mode)).toBe('"once" | "always"');
    expect(showType(undefined)).toBe("any value");
  });
});

describe("arguments as fields", () => {
  it("are JSON, or else text, and read what they write", () => {
    expect(["1", "auto", '"1"', "[1]"].map(readArgument)).toEqual([1, "auto", "1", [1]]);
    for (const value of ["auto", "1", "null", 1, null, [1]])
      expect(readArgument(writeArgument(value))).toEqual(value);
  });
  it("have names, or none", () => {
    expect(rowsOf('{"a": 1}')).toEqual([{ name: "a", text: "1" }]);
    expect(argsOf([{ name: "", text: "1" }])).toBe("[1]");
    expect(argsOf([{ name: "a", text: "x" }])).toBe('{"a":"x"}');
    expect(checkRows(rowsOf("[1]").concat(rowsOf('{"a":1}')))).toBe(
      "Either all arguments have a name, or none.",
    );
    expect(checkRows(rowsOf('{"a":1}').concat(rowsOf('{"a":1}')))).toContain("same name");
  });
});

describe("snippets", () => {
  it("quote for shells and Python", () => {
    expect(["a/b", "it's", "$x"].map(quoteShell)).toEqual(["a/b", "'it'\\''s'", "'$x'"]);
    expect(showPython({ a: [true, null, "x"] })).toBe('{"a": [True, None, "x"]}');
  });
  it("do not take a negative number as an option", () => {
    const lines = listSnippets("speed", { value: -5, isMethod: false, canSet: true }).map(([, text]) => text);
    expect(lines).toContain("jet set -- speed -5");
    expect(listSnippets("a", { value: 1, isMethod: false, canSet: false }).join()).not.toContain("set");
  });
});

it("ranks whole words before beginnings before any place", () => {
  const items = ["Impumpable", "Pumps", "Go to pump", "Tree"];
  expect(rankItems(items, "pump", (item) => item)).toEqual(["Go to pump", "Pumps", "Impumpable"]);
  expect(rankItems(items, " ", (item) => item)).toBe(items);
});
