import { describe, expect, it } from "vitest";
import { ancestors, Tree } from "../src/tree/tree";

function names(tree: Tree, open: string[]): string[] {
  return tree.flatten(new Set(open)).map((row) => `${"  ".repeat(row.depth)}${row.node.name}`);
}

describe("the tree", () => {
  it("lists open nodes in natural order", () => {
    const tree = new Tree();
    for (const path of ["pump10/speed", "pump2/speed", "pump2/mode", "a"]) tree.add(path, 0);
    expect(names(tree, [])).toEqual(["a", "pump2", "pump10"]);
    expect(names(tree, ["pump2"])).toEqual(["a", "pump2", "  mode", "  speed", "pump10"]);
  });

  it("counts the elements below a node", () => {
    const tree = new Tree();
    for (const path of ["a/b/c", "a/b", "a/d"]) tree.add(path, 0);
    expect(tree.root.children.get("a")?.below).toBe(3);
    expect(tree.find("a/b")?.below).toBe(1);
    tree.remove("a/b/c");
    expect(tree.root.children.get("a")?.below).toBe(2);
    expect(tree.find("a/b")?.children.size).toBe(0);
  });

  it("forgets nodes with their last element", () => {
    const tree = new Tree();
    tree.add("a/b/c", 0);
    tree.remove("a/b/c");
    expect(tree.root.children.size).toBe(0);
    expect(tree.size).toBe(0);
  });

  it("keeps a leading slash with the first name", () => {
    const tree = new Tree();
    tree.add("/device/serial", 0);
    expect(names(tree, ["/device"])).toEqual(["/device", "  serial"]);
    expect(ancestors("/device/serial")).toEqual(["/device"]);
  });

  it("lists what is below a node", () => {
    const tree = new Tree();
    for (const path of ["/p/10/s", "/p/2/s", "/p/2", "q"]) tree.add(path, 0);
    expect(tree.listBelow("/p", 10)).toEqual(["/p/2", "/p/2/s", "/p/10/s"]);
    expect(tree.listBelow("/p", 2).length).toBe(2);
    expect(tree.listBelow("nowhere", 2)).toEqual([]);
  });

  it("flattens a hundred thousand elements", () => {
    const tree = new Tree();
    const open = new Set<string>();
    for (let group = 0; group < 100; group++) {
      open.add(`g${group}`);
      for (let index = 0; index < 1000; index++) tree.add(`g${group}/s${index}`, 0);
    }
    expect(tree.flatten(open).length).toBe(100_100);
  });

  it("is what a fresh tree of the same paths is, after any adds and removes", () => {
    let seed = 7;
    const random = (below: number) => {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      return seed % below;
    };
    const tree = new Tree();
    const paths = new Set<string>();
    for (let step = 0; step < 2000; step++) {
      const path = Array.from({ length: 1 + random(3) }, () => "abc"[random(3)]).join("/");
      if (random(2)) {
        tree.add(path, 0);
        paths.add(path);
      } else {
        tree.remove(path);
        paths.delete(path);
      }
    }
    const fresh = new Tree();
    for (const path of paths) fresh.add(path, 0);
    const open = ["a", "b", "c", "a/a", "a/b", "a/c", "b/a", "b/b", "b/c", "c/a", "c/b", "c/c"];
    expect(names(tree, open)).toEqual(names(fresh, open));
    expect(tree.root.below).toBe(fresh.root.below);
  });
});
