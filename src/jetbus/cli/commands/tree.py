"""``jet tree``: the states and methods on the bus, drawn as a tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from jetbus.cli.command import PATH, Example, command
from jetbus.cli.commands.ls import COLUMNS, ListedElement, find_elements
from jetbus.cli.output import Output, choose_format, format_cell, get_terminal_width, print_line, truncate
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject


class Node:
    """Node of the tree: its children and, if there is one at its path, its element."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.children: dict[str, Node] = {}
        self.element: ListedElement | None = None
        self.owners: set[str | None] = set()
        """Owners of the elements here and below."""

    def to_record(self, name: str) -> JsonObject:
        """Return the node and its children as a record."""
        record = {"name": name, **(self.element.to_record() if self.element else {"path": self.path, "kind": "node"})}
        below = [node.to_record(name) for name, node in self.children.items()]
        return {**record, "below": below} if below else record

    def draw(self, indent: str = "", *, owned: bool = False) -> Iterator[str]:
        """Yield the children as lines. An owner is shown once, at the node from which on it owns everything."""
        for number, (name, node) in enumerate(self.children.items(), 1):
            last = number == len(self.children)
            owner = node.describe_owner()
            yield f"{indent}{'└' if last else '├'}─ {name}{node.describe_leaf()}{'' if owned else owner}"
            yield from node.draw(indent + ("   " if last else "│  "), owned=owned or bool(owner))

    def describe_leaf(self) -> str:
        """Return the value of a state, or () for a method."""
        if self.element is None:
            return ""
        event = self.element.event
        return "()" if event.is_method else f" = {format_cell(event.value)}"

    def describe_owner(self) -> str:
        """Return the owner in brackets if everything here and below has the same one."""
        (owner,) = self.owners if len(self.owners) == 1 else (None,)
        return "" if owner is None else f"  [{owner}]"


def _build_tree(found: list[ListedElement], depth: int | None) -> Node:
    root = Node("")
    for one in found:
        node, names = root, one.event.path.split("/")
        for level, name in enumerate(names[:depth], 1):
            node = node.children.setdefault(name, Node("/".join(names[:level])))
            # Elements below the depth are not drawn, but have an owner all the same.
            node.owners.add(one.owner)
        if depth is None or len(names) <= depth:
            node.element = one
    return root


@command(
    examples=[
        Example("jet tree", "the whole bus"),
        Example("jet tree plant --depth 2", "plant and one level below it"),
    ]
)
@click.argument("prefix", required=False, type=PATH)
@click.option("--depth", type=click.IntRange(1), metavar="N", help="show only N levels")
def tree(bus: Target, form: str | None, prefix: str | None, depth: int | None) -> None:
    """Print the states and methods below PREFIX as a tree.

    The owner in brackets owns everything from that node on. As JSON, each node has a name and, if it has children, the
    list `below`.
    """
    found = find_elements(bus, prefix)
    root = _build_tree(found, depth)
    form = form or choose_format(sys.stdout)
    if form == "table":
        width = get_terminal_width()
        for line in root.draw():
            print_line(line if width is None else truncate(line, width))
    elif form in ("json", "jsonl"):
        # JSON prints records whole, so there are no columns to name.
        with Output((), form) as out:
            out.put_all(node.to_record(name) for name, node in root.children.items())
    else:
        with Output(COLUMNS, form, value="path") as out:
            out.put_all(one.to_record() for one in found)
