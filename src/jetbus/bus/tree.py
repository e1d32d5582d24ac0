"""The tree of states and methods.

A leaf is a state or a method; the nodes above it are only counted. A position is free for a leaf if no leaf is there
and, where the tree is strict or its owner speaks the dialect of 2012, no node and no leaf above it either. The tree
knows the owner of each leaf, and sends nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from jetbus.bus.access import Access, Auth
from jetbus.bus.account import VALUE_ROOM
from jetbus.bus.descriptions import UNDESCRIBED, Description, Meta
from jetbus.bus.nodes import Nodes
from jetbus.errors import Occupied
from jetbus.paths import SEPARATOR, is_daemons, parent_of
from jetbus.rules import Rule
from jetbus.rules.work import meter
from jetbus.wire import binary, jsonrpc
from jetbus.wire.dialects import CLASSIC, Dialect
from jetbus.wire.lane import ElementCore

if TYPE_CHECKING:
    from jetbus.bus.audiences import Audience
    from jetbus.bus.session import Session


class Element(ElementCore):
    """A state or method of the tree. ``value`` is raw JSON, None for a method."""

    __slots__ = ()

    usual_room = VALUE_ROOM
    usual_description = UNDESCRIBED
    usual_dialect = CLASSIC

    path: str
    path_json: bytes
    value: bytes | None
    owner: Session
    access: Access | None
    timeout_s: float | None
    description: Description
    """Schema and further members by which its owner describes it."""
    meta: Meta | None
    """Source time, quality and staleness of its value; None if a plain change needs no care, never for a method."""
    dialect: Dialect
    """Dialect in which it was added, and in which requests reach its owner."""
    number: int
    """Its place in the order of creation."""
    room: int
    """Length of its value as its owner's account has it, which may be somewhat longer than the value."""
    audiences: tuple[Audience, ...]
    """Audiences of this element: fetches with a rule that matches its path, by users that may see it."""

    @property
    def schema(self) -> bytes | None:
        """The schema of its description, as JSON."""
        return self.description.schema

    @property
    def others(self) -> Mapping[str, bytes]:
        """Further members of its description."""
        return self.description.others

    def shown_to(self, auth: Auth | None) -> bool:
        """Return True if a user may see it."""
        return self.access is None or self.access.may_fetch(auth)

    def open_to(self, auth: Auth | None) -> bool:
        """Return True if a user may set it, if it is a state, or call it, if it is a method."""
        if self.access is None:
            return True
        return self.access.may_call(auth) if self.is_method else self.access.may_set(auth)

    def fetch_only_for(self, auth: Auth | None) -> bool:
        """Return True if a user can neither set nor call it."""
        return self.fetch_only or not self.open_to(auth)

    @property
    def key(self) -> bytes:
        """Its path, for peers that speak binary."""
        return binary.encode_key(self.path)

    @property
    def body(self) -> bytes:
        """Its value, for peers that speak binary."""
        return binary.EMPTY_BODY if self.value is None else binary.encode_json_body(self.value)


class TypedElement(Element):
    """A state or method of a binary owner: it has a body, and a JSON value only after a peer has asked for it."""

    __slots__ = ("body", "key")

    def __init__(self, path: str, owner: Session, is_method: bool, body: bytes, dialect: Dialect) -> None:
        super().__init__(path, jsonrpc.encode(path), None, owner, is_method, False, None, dialect)
        self.key = binary.encode_key(path)  # type: ignore[misc]
        self.body = body  # type: ignore[misc]

    @property
    def value(self) -> bytes | None:
        value: bytes | None = _value.__get__(self)
        if value is None and not self.is_method:
            value = binary.to_json(self.body)
            _value.__set__(self, value)
        return value

    @value.setter
    def value(self, value: bytes | None) -> None:
        _value.__set__(self, value)


_value: Any = ElementCore.__dict__["value"]
"""The attribute in which a typed element keeps the body as JSON; None until it is needed."""


def set_value(element: Element, value: bytes) -> None:
    """Set the value of a state, given as JSON or, if its owner speaks binary, as body."""
    if isinstance(element, TypedElement):
        element.body, element.value = value, None  # type: ignore[misc]
    else:
        element.value = value


def as_json(element: Element, value: bytes) -> bytes:
    """Return a value that is given as for ``set_value`` as JSON."""
    return binary.to_json(value) if isinstance(element, TypedElement) else value


class Tree:
    """Leaves by path, in order of creation, and the nodes above them.

    ``kind`` selects the leaves that keep off nodes and other leaves: ``strict`` all, ``flat`` none, ``auto`` those of
    owners with a dialect that knows nodes. Programs of the other dialects add ``a`` and ``a/b`` side by side.
    """

    def __init__(self, kind: str = "auto", separators: str = SEPARATOR) -> None:
        self._strict = kind == "strict"
        self._auto = kind == "auto"
        self.separators = separators
        self._other_nodes: dict[str, Nodes] = {}
        """Nodes of all leaves, by separators other than those of the bus."""
        self.elements: dict[str, Element] = {}
        self.nodes = Nodes(separators)
        self._created = 0
        # Sorted paths for finding the elements below a prefix; brought up to date only when asked.
        self._sorted: list[str] = []
        self._unsorted: list[str] = []
        self._stale: set[str] = set()

    def add(self, element: Element) -> None:
        """Add a leaf."""
        path, elements = element.path, self.elements
        if path in elements:
            raise Occupied(path)
        # The walk up the path is done only in a strict tree, or for dialects with nodes.
        if self._strict or (self._auto and element.dialect.has_nodes):
            self._check_relatives(path, element.owner.separators or self.separators)
        self.nodes.add(path)
        self._created = element.number = self._created + 1
        elements[path] = element
        for nodes in self._other_nodes.values():
            nodes.add(path)
        # It was removed and is still in one of the lists, where it must not be twice.
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

    def _nodes_by(self, separators: str) -> Nodes:
        """Return the nodes of all paths under these separators, cached, since there are only few sets of separators."""
        if separators == self.separators:
            return self.nodes
        if separators not in self._other_nodes:
            nodes = self._other_nodes[separators] = Nodes(separators)
            for path in self.elements:
                nodes.add(path)
        return self._other_nodes[separators]

    def remove(self, element: Element) -> None:
        """Remove a leaf."""
        del self.elements[element.path]
        self._stale.add(element.path)
        # The list has more dead paths than living ones: sort it anew when it is needed next.
        if len(self._stale) > 1000 and len(self._stale) > len(self.elements):
            self._sorted, self._unsorted, self._stale = [], list(self.elements), set()
        self.nodes.remove(element.path)
        for nodes in self._other_nodes.values():
            nodes.remove(element.path)

    def matching(self, rule: Rule) -> list[Element]:
        """Return the leaves with a path that a rule matches, in order of creation."""
        test, daemon = rule.matches_path, rule.sees_daemon
        if rule.reports_work:
            return [element for element in self.candidates(rule) if _matches(rule, element.path)]
        return [
            element
            for element in self.candidates(rule)
            if test(element.path) and (daemon or not is_daemons(element.path))
        ]

    def candidates(self, rule: Rule) -> Collection[Element]:
        """Return leaves that include all matches of a rule, in order of creation, from the index where possible."""
        elements = self.elements
        if rule.exact_paths is not None:
            found = [elements[path] for path in rule.exact_paths if path in elements]
        elif rule.prefix:
            found = [elements[path] for path in self._below(rule.prefix) if path in elements]
        else:
            return elements.values()
        # The index is sorted by path, but peers see first events in order of creation.
        found.sort(key=lambda element: element.number)
        return found

    def count_candidates(self, rule: Rule) -> int:
        """Return the number of ``candidates`` of a rule."""
        if rule.exact_paths is not None:
            return len(rule.exact_paths)
        if not rule.prefix:
            return len(self.elements)
        first, last = self._range_below(rule.prefix)
        return last - first

    def _below(self, prefix: str) -> list[str]:
        first, last = self._range_below(prefix)
        return self._sorted[first:last]

    def _range_below(self, prefix: str) -> tuple[int, int]:
        if self._unsorted:
            # Adds come in long runs without a look-up between them; sorting once is far cheaper than inserting each.
            self._sorted += self._unsorted
            self._sorted.sort()
            self._unsorted = []
        first = bisect_left(self._sorted, prefix)
        return first, bisect_right(self._sorted, prefix, first, key=lambda path: path[: len(prefix)])


def _matches(rule: Rule, path: str) -> bool:
    """Return True if a slow rule matches a path; raise ``LimitReached`` if that has taken too much work."""
    meter.spend(1)
    return rule.matches_path(path) and (rule.sees_daemon or not is_daemons(path))
