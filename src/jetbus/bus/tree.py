"""The tree of states and methods.

A leaf is a state or a method; the nodes above it are only counted. A position is free for a leaf if no leaf is there
and, where the tree is strict or its owner speaks the dialect of 2012, no node and no leaf above it either. The tree
knows nothing of peers beyond who owns a leaf, and tells nobody.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from jetbus.bus.access import Access, Auth
from jetbus.errors import Occupied
from jetbus.paths import SEPARATOR, is_daemons, nodes_of, parent_of
from jetbus.rules import Rule
from jetbus.wire import binary
from jetbus.wire.dialects import CLASSIC, NO_MEMBERS, Dialect

if TYPE_CHECKING:
    from jetbus.bus.audience import Audience
    from jetbus.bus.session import Session


class Element(Struct, eq=False):
    """A state or a method hung into the tree. ``value`` is raw JSON, None for a method."""

    path: str
    path_json: bytes
    value: bytes | None
    owner: Session
    is_method: bool = False
    fetch_only: bool = False
    access: Access | None = None
    timeout_s: float | None = None
    schema: bytes | None = None
    """What it is, in its owner's words, as JSON."""
    others: Mapping[str, bytes] = NO_MEMBERS
    """Further members that its owner described it with."""
    dialect: Dialect = CLASSIC
    """How it was added, and so how requests reach its owner."""
    number: int = 0
    """Its place in the order of creation."""
    audiences: tuple[Audience, ...] = ()
    """Who is told of this element: the fetches whose path rule matches and who may see it."""

    def shown_to(self, auth: Auth | None) -> bool:
        """Whether a peer with these groups may know of it."""
        return self.access is None or self.access.may_fetch(auth)

    def open_to(self, auth: Auth | None) -> bool:
        """Whether a peer with these groups may set (a state) or call (a method) it."""
        if self.access is None:
            return True
        return self.access.may_call(auth) if self.is_method else self.access.may_set(auth)

    def fetch_only_for(self, auth: Auth | None) -> bool:
        """Whether a peer with these groups can only look at it."""
        return self.fetch_only or not self.open_to(auth)

    @property
    def key(self) -> bytes:
        """Its path, for peers that speak binary."""
        return binary.key(self.path)

    @property
    def body(self) -> bytes:
        """Its value, for peers that speak binary."""
        return binary.EMPTY_BODY if self.value is None else binary.json_body(self.value)


class TypedElement(Element, eq=False):
    """A state or method whose owner speaks binary: it has a body, and a JSON value only once somebody asks for it."""

    key: bytes = b""
    body: bytes = binary.EMPTY_BODY
    text: bytes = b""
    """The body as JSON; empty until it is needed."""

    @property  # type: ignore[misc]
    def value(self) -> bytes | None:  # type: ignore[override]
        if not self.text and not self.is_method:
            self.text = binary.json_of(self.body)
        return self.text or None


class Tree:
    """All leaves by path, in order of creation, and how many leaves and nodes hang directly below each node.

    ``kind`` says whose leaves keep off nodes and other leaves: ``strict`` all, ``flat`` none, ``auto`` those of owners
    whose dialect knows nodes. Programs of the other dialects add ``a`` and ``a/b`` side by side.
    """

    def __init__(self, kind: str = "auto", separators: str = SEPARATOR) -> None:
        self._strict = kind == "strict"
        self._auto = kind == "auto"
        self.separators = separators
        self._other_nodes: dict[str, dict[str, int]] = {}
        """How many leaves are below each node, for peers with separators of their own."""
        self.elements: dict[str, Element] = {}
        self.nodes: dict[str, int] = {}
        self._created = 0
        # Sorted paths for finding what is below a prefix; brought up to date only when asked.
        self._sorted: list[str] = []
        self._unsorted: list[str] = []
        self._stale: set[str] = set()

    def add(self, element: Element) -> None:
        """Hang a leaf in."""
        path, elements, counts = element.path, self.elements, self.nodes
        if path in elements:
            raise Occupied(path)
        if self._strict or (self._auto and element.dialect.tells_nodes):
            self._check_relatives(path, element.owner.separators or self.separators)
        parent = parent_of(path, self.separators)
        if parent in counts:
            counts[parent] += 1
        elif parent:
            self._grow(parent)
        self._created = element.number = self._created + 1
        elements[path] = element
        if self._other_nodes:
            self._count_others(path, 1)
        if self._stale and path in self._stale:
            self._stale.discard(path)
        else:
            self._unsorted.append(path)

    def _check_relatives(self, path: str, separators: str) -> None:
        """Refuse a leaf where a node is, or below another leaf."""
        elements, nodes = self.elements, self._nodes_by(separators)
        if path in nodes:
            raise Occupied(path)
        parent = parent_of(path, separators)
        while parent:
            if parent in elements:
                raise Occupied(path)
            if self._strict and nodes is self.nodes and parent in nodes:
                return  # no node of a strict tree is below a leaf
            parent = parent_of(parent, separators)

    def _nodes_by(self, separators: str) -> dict[str, int]:
        """The nodes that these separators make; those of few sets of separators are kept."""
        if separators == self.separators:
            return self.nodes
        if separators not in self._other_nodes:
            self._other_nodes[separators] = {}
            for path in self.elements:
                self._count_others(path, 1, separators)
        return self._other_nodes[separators]

    def _count_others(self, path: str, step: int, *sets: str) -> None:
        for separators in sets or self._other_nodes:
            counts = self._other_nodes[separators]
            for node in nodes_of(path, separators):
                counts[node] = counts.get(node, 0) + step
                if not counts[node]:
                    del counts[node]

    def _grow(self, parent: str) -> None:
        """Make a node and those above it, up to one that is there already."""
        while parent and parent not in self.nodes:
            self.nodes[parent] = 1
            parent = parent_of(parent, self.separators)
        if parent:
            self.nodes[parent] += 1

    def remove(self, element: Element) -> None:
        """Take a leaf out."""
        del self.elements[element.path]
        self._stale.add(element.path)
        if len(self._stale) > 1000 and len(self._stale) > len(self.elements):
            self._sorted, self._unsorted, self._stale = [], list(self.elements), set()
        if self._other_nodes:
            self._count_others(element.path, -1)
        node = parent_of(element.path, self.separators)
        while node:
            self.nodes[node] -= 1
            if self.nodes[node]:
                break
            del self.nodes[node]
            node = parent_of(node, self.separators)

    def matching(self, rule: Rule) -> list[Element]:
        """The leaves whose path the rule matches, in order of creation."""
        test, daemon = rule.matches_path, rule.sees_daemon
        return [
            element
            for element in self._candidates(rule)
            if test(element.path) and (daemon or not is_daemons(element.path))
        ]

    def _candidates(self, rule: Rule) -> Iterable[Element]:
        elements = self.elements
        if rule.exact_paths is not None:
            found = [elements[path] for path in rule.exact_paths if path in elements]
        elif rule.prefix:
            found = [elements[path] for path in self._below(rule.prefix) if path in elements]
        else:
            return elements.values()
        found.sort(key=lambda element: element.number)
        return found

    def _below(self, prefix: str) -> list[str]:
        if self._unsorted:
            self._sorted += self._unsorted
            self._sorted.sort()
            self._unsorted = []
        first = bisect_left(self._sorted, prefix)
        last = bisect_right(self._sorted, prefix, first, key=lambda path: path[: len(prefix)])
        return self._sorted[first:last]
