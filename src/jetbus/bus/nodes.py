"""Nodes: the inner positions of the tree, as a trie of segments.

A node is above a leaf and exists as long as one is below it. Each node stores its own segment only, so that a deep
path takes memory in proportion to its length::

    plant/pump/speed, plant/pump/on        plant -- pump      (2 below)

A segment keeps extra separators in front of it, so that ``a//b`` and ``a/b`` are above different nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jetbus.paths import SEPARATOR, nodes_of, parent_of


class _Node:
    """A node, with the number of leaves and nodes directly below it."""

    __slots__ = ("below", "children", "parent", "segment")

    def __init__(self, segment: str, parent: _Node | None) -> None:
        self.segment = segment
        self.parent = parent
        self.below = 0
        self.children: dict[str, _Node] | None = None
        """Nodes directly below by their segments, None for none."""


class Nodes:
    """All nodes above a set of leaves. With several separators each of them ends a segment."""

    def __init__(self, separators: str = SEPARATOR) -> None:
        self.separators = separators
        self._is_plain = separators == SEPARATOR
        self._segments = re.compile(f"[{re.escape(separators)}]*[^{re.escape(separators)}]+")
        self._root = _Node("", None)
        self._count = 0
        # Leaves are mostly added below the same node in a row; this is the last one.
        self._last_path, self._last_node = "", self._root

    def __len__(self) -> int:
        return self._count

    def __contains__(self, path: str) -> bool:
        return path[-1:] not in self.separators and self._find(path) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the paths of all nodes, in no order."""
        between = SEPARATOR if self._is_plain else ""
        todo = [("", self._root)]
        while todo:
            above, node = todo.pop()
            for segment, child in (node.children or {}).items():
                path = above + between + segment if above else segment
                yield path
                todo.append((path, child))

    def add(self, leaf: str) -> list[str]:
        """Add a leaf and return the nodes that appear with it, root first."""
        path = parent_of(leaf, self.separators)
        if path == self._last_path:
            self._last_node.below += 1
            return []
        node, grown = self._root, 0
        for segment in self._split(path):
            if node.children is None:
                node.children = {}
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = _Node(segment, node)
                node.below += 1
                grown += 1
            node = child
        node.below += 1
        self._count += grown
        self._last_path, self._last_node = path, node
        return nodes_of(leaf, self.separators)[-grown:] if grown else []

    def remove(self, leaf: str) -> list[str]:
        """Remove a leaf and return the nodes that vanish with it, root first."""
        path = parent_of(leaf, self.separators)
        node = self._last_node if path == self._last_path else self._find(path)
        gone = 0
        while node is not None:
            node.below -= 1
            if node.below or node.parent is None:
                break
            # A node without children vanishes, and with it perhaps its parent.
            node.parent.children.pop(node.segment)  # type: ignore[union-attr]
            gone += 1
            node = node.parent
        if not gone:
            return []
        self._count -= gone
        self._last_path, self._last_node = "", self._root
        return nodes_of(leaf, self.separators)[-gone:]

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for segment in self._split(path):
            node = (node.children or {}).get(segment) if node is not None else None
        return node

    def _split(self, path: str) -> list[str]:
        if not path:
            return []
        if not self._is_plain:
            return self._segments.findall(path)
        segments = path.split(SEPARATOR)
        if "" not in segments:
            return segments
        # One separator in front of a segment is understood; any others are part of it.
        first, *others = self._segments.findall(path)
        return [first, *(segment[1:] for segment in others)]
