"""Who is told of an event, and how the telling is shared.

Peers of one library use the same fetch ids with the same rules, so their notifications are the same bytes. Fetches
that are told exactly the same form one *audience*: an event is put into bytes once for all of them. While nothing
else is sent to a member, the audience's events of one turn gather in one *chunk* that every member's outbox refers
to, so a hundred dashboards cost a hundred writes a turn and not a hundred appends an event.

The order a member sees must be the order it would have seen alone. Hence the invariant: an open chunk is the last
thing in the outbox of every member. Whatever else goes into one of these outboxes closes the chunk first (``Outbox``
does that by setting ``open_pieces`` to None), and a member that reads too slowly gets its events one by one, so that
they can be conflated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from jetbus.bus.past import Then, with_ts
from jetbus.bus.sorting import Window
from jetbus.rules import Rule
from jetbus.wire import jsonrpc
from jetbus.wire.dialects import CLASSIC, Dialect, legacy_tail, with_schema
from jetbus.wire.framing import Framing

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.tree import Element


class Chunk:
    """Bytes shared by several outboxes: gathered piece by piece, joined once."""

    __slots__ = ("_joined", "pieces")

    beside: ClassVar = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._joined: bytes | None = None

    def joined(self) -> bytes:
        """All of it; nothing may be added afterwards."""
        if self._joined is None:
            self._joined = b"".join(self.pieces)
        return self._joined

    def apart(self) -> tuple[bytes, ...]:
        return (self.joined(),)


class Part(Protocol):
    """What an outbox may hold besides bytes."""

    beside: ClassVar[bool]
    """Whether others of the kind may be open in an outbox at the same time: their order does not matter."""

    def joined(self) -> bytes: ...

    def apart(self) -> tuple[bytes, ...]:
        """The same in pieces, of which the large ones are shared with other outboxes."""


class Outbox(Protocol):
    """What the brain needs of the way out to a peer."""

    slow: bool
    """Whether the peer reads more slowly than it is told; such a one takes events one by one."""

    def put(self, frame: bytes) -> None:
        """Send a whole frame (or several)."""

    def batch(self) -> None:
        """Frames are messages after a comma from now on: make a batch of what is written together."""

    def put_chunk(self, audience: Audience, chunk: Part) -> None:
        """Send what is in the chunk, and what will be until the audience closes it."""

    def lend(self, audience: Audience, /) -> list[bytes]:
        """The outbox itself as the pieces of an audience of one; a chunk would only be in the way."""

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None:
        """Send one event to a slow peer; a newer change of the same path may take its place."""

    def forget(self, audience: Audience) -> None:
        """The peer has left the audience: what it was told before must not be replaced by what comes later."""


Key = tuple[Any, ...]
"""All that the bytes of an audience depend on."""
Event = Any
"""What is to be told, as the audience's dialect has it; only the audience itself looks into it."""


class Audience:
    """All fetches that are told the same bytes."""

    __slots__ = (
        "_fitted",
        "_fitted_bytes",
        "_header",
        "_lend",
        "_slow",
        "auth",
        "dialect",
        "easy",
        "every",
        "head",
        "key",
        "matched",
        "members",
        "nodes",
        "open_pieces",
        "plain",
        "raw",
        "rule",
        "separators",
        "value_test",
        "window",
    )

    def __init__(
        self, fetch_id: bytes, rule: Rule, dialect: Dialect, framing: Framing, auth: Auth | None, every: bool
    ) -> None:
        self.key: Key = (fetch_id, rule, dialect.name, framing.name, auth, every)
        self.head = b'{"method":' + fetch_id + b","
        self.rule = rule
        self.dialect = dialect
        self.auth = auth
        self.every = every
        self.members: dict[Outbox, bytes] = {}
        """Who is told, and the id that each has for its fetch."""
        self.value_test = rule.matches_value
        self.matched: set[Element] = set()
        """The elements whose value matches, where the rule looks at values."""
        self.separators = ""
        self.nodes: dict[str, int] = {}
        """The nodes it knows of and how many leaves are below each, where its dialect tells nodes."""
        self.window = Window(rule.sort, auth) if rule.sort and dialect.sorts else None
        tells_all = self.value_test is None and self.window is None
        self.plain = dialect is CLASSIC and tells_all
        """Whether each change is told, the classic way: the bus then needs not ask."""
        self.raw = dialect.is_binary and tells_all
        """Whether each change is told, with the body as it came."""
        self.easy = rule.is_found_by_index and dialect.tells_methods
        """Whether a path that is found in the index of fetches needs no further test."""
        self.open_pieces: list[bytes] | None = None
        self._header = framing.header
        self._fitted_bytes = -1
        self._fitted = b""
        """The head for a tail of that many bytes; tails of one fetch are mostly of one length."""
        self._slow: dict[Outbox, bytes] = {}
        self._lend: Callable[[Audience], list[bytes]] | None = None
        """Gives the outbox of the only member, while there is just one and it is not slow."""

    # -- members

    def join(self, outbox: Outbox, fetch_id: bytes) -> None:
        (self._slow if outbox.slow else self.members)[outbox] = fetch_id
        self._recount()

    def leave(self, outbox: Outbox) -> bytes:
        """Be told nothing more; gives the id of the fetch that this was."""
        fetch_id = self.members.pop(outbox, b"") or self._slow.pop(outbox, b"")
        self._recount()
        return fetch_id

    def _recount(self) -> None:
        self.open_pieces = None
        alone = len(self.members) == 1 and not self._slow
        self._lend = next(iter(self.members)).lend if alone else None

    def rejoin(self, outbox: Outbox) -> None:
        """The outbox has become slow, or is no longer."""
        self.join(outbox, self.leave(outbox))

    def __contains__(self, outbox: Outbox) -> bool:
        return outbox in self.members or outbox in self._slow

    @property
    def empty(self) -> bool:
        return not self.members and not self._slow

    # -- bytes

    def head_for(self, tail_bytes: int) -> bytes:
        """What precedes a tail of that length: the frame's header and the fetch id."""
        if tail_bytes != self._fitted_bytes:
            self._fitted_bytes = tail_bytes
            self._fitted = self._header(len(self.head) + tail_bytes) + self.head
        return self._fitted

    def frame(self, tail: bytes) -> bytes:
        return self.head_for(len(tail)) + tail

    def first(self, element: Element, _fetch_id: bytes) -> bytes:
        """The frame that tells a new member of an element."""
        return self.frame(self.tail("add", element))

    def then(self, kind: str, then: Then, _fetch_id: bytes) -> bytes:
        """The frame that tells a new member of something in the past."""
        return self.frame(with_ts(self.dialect.tail(kind, then, then.fetch_only), then.ts))

    def first_window(self, window: Window, _fetch_id: bytes) -> bytes:
        """The frame that tells a new member what a sorted fetch begins with."""
        return self.frame(_sorted_tail(window.whole()))

    def tell(self, kind: str, path: str, tail: bytes) -> None:
        """Send one event to all members."""
        pieces = self.open_pieces
        if pieces is None:
            lend = self._lend
            if lend is None:
                pieces = self._open(Chunk(), kind, path, tail)
            else:
                self.open_pieces = pieces = lend(self)
        size = len(tail)
        pieces.append(self._fitted if size == self._fitted_bytes else self.head_for(size))
        pieces.append(tail)

    def _open(self, chunk: Chunk, kind: str, path: str, event: Event) -> list[bytes]:
        """Let the outbox of every member refer to a new chunk, which begins with this event."""
        for outbox, fetch_id in self.members.items():
            outbox.put_chunk(self, self._addressed(chunk, fetch_id))
        if self._slow:
            for outbox, fetch_id in self._slow.items():
                outbox.put_event(self, path, kind, self._whole(event, fetch_id))
        else:
            self.open_pieces = chunk.pieces
        return chunk.pieces

    def _addressed(self, chunk: Chunk, _fetch_id: bytes) -> Part:
        """What one member gets of a chunk: here the same for all."""
        return chunk

    def _whole(self, event: Event, _fetch_id: bytes) -> bytes:
        """The frame of a single event for one member."""
        return self.frame(event)

    # -- events

    def sees_value(self, element: Element) -> bool:
        """Whether the rule's value tests hold for the element now. A method has no value, so none holds for it."""
        if self.value_test is None:
            return True
        value = element.value
        return value is not None and self.value_test(jsonrpc.loads(value))

    def wants(self, element: Element) -> bool:
        """Whether members are told of such an element at all (its path is known to match)."""
        if element.is_method and not self.dialect.tells_methods:
            return False
        return element.shown_to(self.auth)

    def tail(self, kind: str, element: Element) -> bytes:
        return self.dialect.tail(kind, element, element.fetch_only_for(self.auth))

    def on_add(self, element: Element) -> None:
        if not self.sees_value(element):
            return
        if self.value_test is not None:
            self.matched.add(element)
        self._tell_element("add", element)

    def on_change(self, element: Element) -> None:
        if self.value_test is None:
            self._tell_element("change", element)
            return
        before, now = element in self.matched, self.sees_value(element)
        if now:
            self.matched.add(element)
            self._tell_element("change" if before else "add", element)
        elif before:
            self.matched.discard(element)
            self._tell_element("remove", element)

    def on_described(self, element: Element, data: bytes) -> None:
        """Tell of changed members of an element, ``data``, perhaps with a new value."""
        if self.value_test is not None and not (element in self.matched and self.sees_value(element)):
            self.on_change(element)  # it comes, goes or stays away
        elif self.dialect.tells_nodes:
            self.tell("described", element.path, legacy_tail("change", element.path_json, data))
        else:
            self.tell("described", element.path, with_schema(self.tail("change", element), element.schema))

    def on_remove(self, element: Element) -> None:
        if self.value_test is not None:
            if element not in self.matched:
                return
            self.matched.discard(element)
        self._tell_element("remove", element)

    def _tell_element(self, kind: str, element: Element) -> None:
        if self.window is None:
            self.tell(kind, element.path, self.tail(kind, element))
            return
        told = self.window.update(kind, element)
        if told is not None:
            self.tell("sorted", element.path, _sorted_tail(told))


def _sorted_tail(told: bytes) -> bytes:
    return b'"params":' + told + b"}"
