/**
 * The paths of the bus as a tree that is shown as one flat list.
 *
 * A node exists while a path is at it or below it, and knows how many there are below. `flatten` lists what is visible:
 * children of open nodes in natural order (pump2 before pump10).
 */

export const METHOD = 1;
export const READ_ONLY = 2;
/** A pipeline has raised an alarm of it. */
export const ALARM = 4;
/** It has not changed for longer than its schema allows. */
export const STALE = 8;
/** Its owner says that the value is not to be trusted. */
export const BAD = 16;
export const UNCERTAIN = 32;

export interface TreeNode {
  name: string;
  path: string;
  parent: TreeNode | null;
  children: Map<string, TreeNode>;
  /** Children in order, or null if they have to be sorted again. */
  ordered: TreeNode[] | null;
  /** Flags of the element at this very path, or null if there is none. */
  flags: number | null;
  /** Elements below, without this one. */
  below: number;
}

export interface TreeRow {
  node: TreeNode;
  depth: number;
  /** Position among its siblings, from 1, and how many these are. */
  position: number;
  siblings: number;
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "variant" });

/** Order names naturally; those of the daemon itself (`$jet`) come last. */
function compareNames(a: TreeNode, b: TreeNode): number {
  const isDaemons = Number(a.name.startsWith("$")) - Number(b.name.startsWith("$"));
  return isDaemons || collator.compare(a.name, b.name);
}

function makeNode(name: string, path: string, parent: TreeNode | null): TreeNode {
  return { name, path, parent, children: new Map(), ordered: null, flags: null, below: 0 };
}

export class Tree {
  root = makeNode("", "", null);
  private elements = new Map<string, TreeNode>();

  get size(): number {
    return this.elements.size;
  }

  clear(): void {
    this.root = makeNode("", "", null);
    this.elements.clear();
  }

  find(path: string): TreeNode | undefined {
    return this.elements.get(path);
  }

  paths(): Iterable<string> {
    return this.elements.keys();
  }

  add(path: string, flags: number): void {
    const known = this.elements.get(path);
    if (known) {
      known.flags = flags;
      return;
    }
    let node = this.root;
    let end = -1;
    for (const name of splitPath(path)) {
      end += name.length + 1;
      let child = node.children.get(name);
      if (!child) {
        child = makeNode(name, path.slice(0, end), node);
        node.children.set(name, child);
        node.ordered = null;
      }
      node = child;
    }
    node.flags = flags;
    this.elements.set(path, node);
    for (let above = node.parent; above; above = above.parent) above.below++;
  }

  remove(path: string): void {
    const node = this.elements.get(path);
    if (!node) return;
    this.elements.delete(path);
    node.flags = null;
    for (let above = node.parent; above; above = above.parent) above.below--;
    for (let empty: TreeNode | null = node; empty?.parent && empty.flags === null && empty.below === 0; ) {
      const parent: TreeNode = empty.parent;
      parent.children.delete(empty.name);
      parent.ordered = null;
      empty = parent;
    }
  }

  /** List the paths of elements below a node, at most so many, in order. */
  listBelow(path: string, max: number): string[] {
    let node: TreeNode | undefined = this.root;
    for (const name of splitPath(path)) node = node?.children.get(name);
    const paths: string[] = [];
    if (node) listElements(node, max, paths);
    return paths;
  }

  /** List the rows that are visible while these nodes are open. */
  flatten(open: ReadonlySet<string>): TreeRow[] {
    const rows: TreeRow[] = [];
    collect(this.root, 0, open, rows);
    return rows;
  }
}

/** Return the names on the way to a path; a leading slash belongs to the first one. */
function splitPath(path: string): string[] {
  if (!path.startsWith("/")) return path.split("/");
  const names = path.slice(1).split("/");
  names[0] = `/${names[0]}`;
  return names;
}

/** Return the children of a node in natural order. */
function sortChildren(node: TreeNode): TreeNode[] {
  node.ordered ??= [...node.children.values()].sort(compareNames);
  return node.ordered;
}

function listElements(node: TreeNode, max: number, paths: string[]): void {
  for (const child of sortChildren(node)) {
    if (paths.length >= max) return;
    if (child.flags !== null) paths.push(child.path);
    listElements(child, max, paths);
  }
}

function collect(node: TreeNode, depth: number, open: ReadonlySet<string>, rows: TreeRow[]): void {
  const children = sortChildren(node);
  const siblings = children.length;
  for (let index = 0; index < siblings; index++) {
    const child = children[index] as TreeNode;
    rows.push({ node: child, depth, position: index + 1, siblings });
    if (child.children.size > 0 && open.has(child.path)) collect(child, depth + 1, open, rows);
  }
}

/** Return the nodes above a path, outermost first. */
export function ancestors(path: string): string[] {
  const above: string[] = [];
  for (let slash = path.indexOf("/", 1); slash >= 0; slash = path.indexOf("/", slash + 1))
    above.push(path.slice(0, slash));
  return above;
}
