"""Audiences of fetches that speak JSON: every member receives the same frame for an event.

The docstring of the package explains audiences, chunks and the order that they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from jetbus.bus.replay import PastElement
from jetbus.bus.sorting import SortedMatches
from jetbus.rules import Rule
from jetbus.rules.operators import ValueTest
from jetbus.wire import jsonrpc
from jetbus.wire.dialects import CLASSIC, Dialect, encode_legacy_tail
from jetbus.wire.framing import Framing
from jetbus.wire.lane import FRAMING_FLAGS, AudienceCore
from jetbus.wire.notifications import add_timestamp, encode_head, encode_sorted_tail

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.descriptions import Asked
    from jetbus.bus.ports import Outbox, Part
    from jetbus.bus.tree import Element

Key = tuple[Any, ...]
"""Everything that the bytes of an audience depend on."""
Event = Any
"""An event in the form that the kind of audience needs to encode it; no other code looks into it."""
LONG_SORTED_BYTES = 4096
"""Messages of sorted fetches that are longer than that are counted by the outboxes of the members."""


class Chunk:
    """Bytes that several outboxes share: collected in pieces, joined once."""

    __slots__ = ("_joined", "pieces")

    coexists: ClassVar = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._joined: bytes | None = None

    def joined(self) -> bytes:
        """Return the content as one bytes object. Nothing may be added afterwards."""
        if self._joined is None:
            self._joined = b"".join(self.pieces)
        return self._joined

    def apart(self) -> tuple[bytes, ...]:
        """Return the content in pieces, of which the large ones are shared."""
        return (self.joined(),)


class Audience(AudienceCore):
    """Fetches with members that receive the same bytes."""

    __slots__ = (
        "_cached_head",
        "_cached_tail_bytes",
        "_header",
        "_lend",
        "_slow",
        "asked",
        "auth",
        "dialect",
        "every",
        "has_nodes",
        "is_indexed",
        "is_plain",
        "is_raw",
        "key",
        "matched",
        "members",
        "nodes",
        "rule",
        "separators",
        "sorted_matches",
        "value_test",
        "wants_meta",
        "wants_schema",
    )

    def __init__(
        self, fetch_id: bytes, rule: Rule, dialect: Dialect, framing: Framing, auth: Auth | None, every: bool
    ) -> None:
        self.key: Key = (fetch_id, rule, dialect.name, framing.name, auth, every)
        self.head = encode_head(fetch_id)
        self.rule = rule
        self.dialect = dialect
        self.auth = auth
        self.every = every
        self.members: dict[Outbox, bytes] = {}
        """Members that are not slow, with their fetch ids."""
        self.value_test = rule.matches_value
        self.matched: set[Element] = set()
        """Elements with a value that matches, if the rule tests values."""
        self.has_nodes = False
        """True if members are told of nodes, too."""
        self.separators = ""
        self.nodes: Iterable[str] = ()
        """Nodes that the members may know, if they are told of nodes."""
        self.sorted_matches = SortedMatches(rule.sort, auth) if rule.sort and dialect.sorts else None
        sends_all = self.value_test is None and self.sorted_matches is None
        self.is_plain = dialect is CLASSIC and sends_all
        """True if every change is sent in the classic form; the bus then encodes one tail for all such audiences."""
        self.is_raw = dialect.is_binary and sends_all
        """True if every change is sent with its binary body unchanged."""
        self.lane_framing = FRAMING_FLAGS.get(framing.name, 0)
        """Framing of events as the compiled lane knows it, 0 if it does not."""
        self.asked: Asked | None = None
        """Parts of descriptions that members ask for, None for nothing."""
        self.wants_schema = dialect.has_nodes
        """True if members receive changes of schemas."""
        self.wants_meta = False
        """True if members are told when a state becomes stale."""
        self.is_indexed = rule.is_found_by_index and dialect.has_methods
        """True if a path that is found in the index of fetches needs no further test."""
        self.open_pieces: list[bytes] | None = None
        """Pieces of the open chunk, None if there is none."""
        self._header = framing.header
        # The head depends on the length of the tail, and most tails of a fetch have the same length.
        self._cached_tail_bytes = -1
        self._cached_head = b""
        self._slow: dict[Outbox, bytes] = {}
        self._lend: Callable[[Audience], list[bytes]] | None = None
        """``Outbox.lend`` of the only member, if there is one member and it is not slow."""

    # -- members

    def join(self, outbox: Outbox, fetch_id: bytes) -> None:
        """Add a member with the id of its fetch."""
        (self._slow if outbox.slow else self.members)[outbox] = fetch_id
        self._members_changed()

    def leave(self, outbox: Outbox) -> bytes:
        """Remove a member and return the id of its fetch."""
        fetch_id = self.members.pop(outbox, b"") or self._slow.pop(outbox, b"")
        self._members_changed()
        return fetch_id

    def _members_changed(self) -> None:
        self.open_pieces = None
        # An open chunk has the former members; the next event opens one for the present ones.
        alone = len(self.members) == 1 and not self._slow
        self._lend = next(iter(self.members)).lend if alone else None

    def rejoin(self, outbox: Outbox) -> None:
        """Move a member that has become slow, or has caught up, to its place."""
        self.join(outbox, self.leave(outbox))

    @property
    def outboxes(self) -> Iterator[Outbox]:
        """All members, including the slow ones."""
        yield from self.members
        yield from self._slow

    def __contains__(self, outbox: Outbox) -> bool:
        return outbox in self.members or outbox in self._slow

    @property
    def is_empty(self) -> bool:
        return not self.members and not self._slow

    def renew(self, auth: Auth | None) -> None:
        """Replace the rights of all members; the caller adds and removes the elements that this shows or hides."""
        self.auth = auth
        self.key = (*self.key[:4], auth, *self.key[5:])
        if self.sorted_matches is not None:
            self.sorted_matches.auth = auth

    # -- frames and chunks

    def _fit_head(self, tail_bytes: int) -> bytes:
        """Return the bytes before a tail of this length: header of the frame and head of the notification."""
        if tail_bytes != self._cached_tail_bytes:
            # Only the length of the frame differs between two heads, so a
            # head can be used for every tail of the same length.
            self._cached_tail_bytes = tail_bytes
            self._cached_head = self._header(len(self.head) + tail_bytes) + self.head
        return self._cached_head

    def frame(self, tail: bytes) -> bytes:
        """Return the frame of a notification with this tail."""
        return self._fit_head(len(tail)) + tail

    def encode_add(self, element: Element, _fetch_id: bytes) -> bytes:
        """Return the frame that announces an element to a new member."""
        return self.frame(self.encode_tail("add", element))

    def encode_node_add(self, node: str, _fetch_id: bytes) -> bytes:
        """Return the frame that announces a node to a new member."""
        return self.frame(self.dialect.encode_node("add", node))

    def encode_past(self, kind: str, element: PastElement, _fetch_id: bytes) -> bytes:
        """Return the frame of a past event for a new member."""
        return self.frame(add_timestamp(self.dialect.encode_tail(kind, element, element.fetch_only), element.ts))

    def encode_sorted(self, changes: bytes, _fetch_id: bytes) -> bytes:
        """Return the frame of a sorted fetch with all visible entries."""
        return self.frame(encode_sorted_tail(changes))

    def encode_window(self, outbox: Outbox) -> bytes:
        """Return the frame with the whole window of a sorted fetch, as a member that is or was slow receives it now."""
        matches, fetch_id = self.sorted_matches, self._slow.get(outbox) or self.members[outbox]
        return b"" if matches is None else self.encode_sorted(matches.encode_all(), fetch_id)

    def send(self, kind: str, path: str, tail: bytes) -> None:
        """Send one event to all members."""
        pieces = self.open_pieces
        if pieces is None:
            pieces = self.open(kind, path, tail)
        pieces.append(self._fit_head(len(tail)))
        pieces.append(tail)

    def open(self, kind: str, path: str, tail: bytes) -> list[bytes]:
        """Return the pieces of a new chunk, or of a borrowed outbox, for an event that the caller adds to them."""
        if self._lend is None:
            return self._open(Chunk(), kind, path, tail)
        self.open_pieces = pieces = self._lend(self)
        return pieces

    def send_node(self, kind: str, node: str) -> None:
        """Send the event of a node that appeared or vanished."""
        self.send(kind, node, self.dialect.encode_node(kind, node))

    def _open(self, chunk: Chunk, kind: str, path: str, event: Event) -> list[bytes]:
        """Put a new chunk into the outbox of every member and return its pieces, to which the caller adds the event.

        Slow members receive the event by itself. While there are any the chunk is not kept open, so that every event
        comes here and reaches them.
        """
        for outbox, fetch_id in self.members.items():
            outbox.put_chunk(self, self._address(chunk, fetch_id))
        if self._slow:
            # Not ``put_chunk``: in the queue of a slow peer a newer change must find the older one, to replace it.
            for outbox, fetch_id in self._slow.items():
                outbox.put_event(self, path, kind, self._encode_event(event, fetch_id))
        else:
            self.open_pieces = chunk.pieces
        return chunk.pieces

    def close_chunk(self) -> None:
        """Add nothing more to the open chunk, because something else follows it in an outbox."""
        self.open_pieces = None

    def _address(self, chunk: Chunk, _fetch_id: bytes) -> Part:
        """Return the chunk as one member receives it: here the same for all."""
        return chunk

    def _encode_event(self, event: Event, _fetch_id: bytes) -> bytes:
        """Return the frame of a single event for one member."""
        return self.frame(event)

    # -- events

    def matches_value(self, element: Element) -> bool:
        """Return True if the value tests of the rule hold now. They never hold for a method, which has no value."""
        if self.value_test is None:
            return True
        value = element.value
        return value is not None and _passes(self.value_test, value)

    def accepts(self, element: Element) -> bool:
        """Return True if members may receive events of an element with a matching path."""
        if element.is_method and not self.dialect.has_methods:
            return False
        return element.shown_to(self.auth)

    def encode_tail(self, kind: str, element: Element) -> bytes:
        """Return the tail of an event as the members may see it."""
        return self.dialect.encode_tail(kind, element, element.fetch_only_for(self.auth))

    def on_add(self, element: Element) -> None:
        """Handle an element that is new to the members."""
        if not self.matches_value(element):
            return
        if self.value_test is not None:
            self.matched.add(element)
        self._send_element("add", element)

    def on_change(self, element: Element) -> None:
        """Handle a new value. With value tests a match may start or end: an add or a remove for the members."""
        if self.value_test is None:
            self._send_element("change", element)
            return
        # The members know exactly the elements in ``matched``. So the test of the old value need not be repeated.
        before, now = element in self.matched, self.matches_value(element)
        if now:
            self.matched.add(element)
            self._send_element("change" if before else "add", element)
        elif before:
            self.matched.discard(element)
            self._send_element("remove", element)

    def on_described(self, element: Element, data: bytes) -> None:
        """Handle a change of the schema or other members, which ``data`` has as JSON, perhaps with a new value."""
        if self.value_test is not None and not (element in self.matched and self.matches_value(element)):
            self.on_change(element)  # a match starts, ends or never was
        elif self.sorted_matches is not None:
            self._send_element("change", element)
        elif self.dialect.has_nodes:
            self.send("described", element.path, encode_legacy_tail("change", element.path_json, data))
        else:
            self._send_described(element)

    def _send_described(self, element: Element) -> None:
        """Send a change with the schema; only audiences that ask for schemas do."""

    def on_stale(self, element: Element) -> None:
        """Handle a state that has become stale."""
        if self.value_test is None or element in self.matched:
            self._send_element("change", element)

    def on_remove(self, element: Element) -> None:
        """Handle an element that is gone, or hidden from the members from now on."""
        if self.value_test is not None:
            if element not in self.matched:
                return
            self.matched.discard(element)
        self._send_element("remove", element)

    def _send_element(self, kind: str, element: Element) -> None:
        if self.sorted_matches is None:
            self.send(kind, element.path, self.encode_tail(kind, element))
            return
        changed = self.sorted_matches.update(kind, element)
        # Most changes of a long list are outside the visible range.
        if changed is None or not self._is_awaited():
            return
        tail = encode_sorted_tail(self.sorted_matches.encode(*changed))
        self.send("sorted", element.path, tail)
        self._note_sorted(len(tail), len(tail))

    def _note_sorted(self, size: int, uncounted: int) -> None:
        """Let outboxes count a long message of a sorted fetch, of which so many bytes are not counted yet."""
        if size > LONG_SORTED_BYTES:
            # An owner that leaves removes all its states in one turn, and each may move all entries of a wide window.
            for outbox in list(self.members):
                outbox.note_gathered(uncounted)

    def _is_awaited(self) -> bool:
        """Return True if a member needs the next event of a sorted fetch: one that is there, and awaits no window."""
        return any(not outbox.closed for outbox in self.members) or any(
            not outbox.closed and not outbox.awaits_window(self) for outbox in self._slow
        )


# The value that was tested last, decoded, and the results of its tests. An event reaches its audiences one after the
# other, so they share the decoded value, and those with equal tests the result as well. One slot is enough for that.
_tested: tuple[bytes, Any, dict[ValueTest, bool]] = (b"", None, {})


def _passes(test: ValueTest, value: bytes) -> bool:
    """Return True if a value passes a test."""
    global _tested
    tested = _tested
    if tested[0] is not value:
        tested = _tested = (value, jsonrpc.loads(value), {})
    passed = tested[2].get(test)
    if passed is None:
        passed = tested[2][test] = test(tested[1])
    return passed
