"""A connected peer as the brain sees it: what it owns, fetches and speaks. The connection itself is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetbus.wire.dialects import CLASSIC, Dialect
from jetbus.wire.framing import BATCHES, STREAM, Framing

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audience import Audience, Outbox
    from jetbus.bus.batches import Batches
    from jetbus.bus.routes import Route
    from jetbus.bus.tree import Element


class Session:
    """One peer, from connect to disconnect."""

    __slots__ = (
        "__weakref__",
        "auth",
        "batches",
        "dialect",
        "elements",
        "fetches",
        "framing",
        "fresh",
        "gone",
        "header",
        "held",
        "label",
        "logins_failed",
        "name",
        "number",
        "outbox",
        "put",
        "put_off",
        "refused",
        "released",
        "routes",
        "separators",
        "speaks_jsonrpc",
        "waiting",
    )

    def __init__(self, number: int, outbox: Outbox, framing: Framing = STREAM, dialect: Dialect = CLASSIC) -> None:
        self.number = number
        self.outbox = outbox
        self.put = outbox.put
        self.framing = framing
        self.header = framing.header
        self.dialect = dialect
        self.name = ""
        self.label = f"#{number}"
        """Who it is, for logs and the record: its name and its connection number."""
        self.auth: Auth | None = None
        self.elements: dict[str, Element] = {}
        """What it owns, in order of creation."""
        self.fetches: dict[bytes, Audience] = {}
        """Its fetches by id; the id keeps its JSON type."""
        self.routes: dict[bytes, Route] = {}
        """Requests that wait for its answer, oldest first."""
        self.fresh = True
        """Nothing has been received yet: the first message tells a node-jet 3 peer."""
        self.held = False
        """Its messages wait until a slow service has answered."""
        self.put_off: Callable[[], None] | None = None
        """Begins the fetch that its messages wait for, where that has been put off until it is its turn."""
        self.waiting: list[bytes] = []
        self.released: Callable[[], None] = lambda: None
        """Called when its messages need not wait any longer."""
        self.gone = False
        self.refused = ""
        """Why the peer cannot be served at all; it is told and closed."""
        self.logins_failed = 0
        self.batches: Batches | None = None
        """Its batches that are not yet answered, where they are answered as a whole."""
        self.speaks_jsonrpc = False
        """Whether it says ``jsonrpc`` and, being of 2012, is answered with it."""
        self.separators = ""
        """What separates the segments of paths in its eyes, if not what the bus says."""

    def take_batches(self) -> None:
        """Tell it from now on all that is written together in one message, where there is a frame a message."""
        if self.framing is STREAM:
            self.outbox.batch()
            self.framing, self.header = BATCHES, BATCHES.header

    def send(self, message: bytes) -> None:
        """One message to this peer."""
        self.put(self.header(len(message)) + message)

    def answer(self, request_id: bytes, result: bytes) -> None:
        """The result of a request, to a peer that speaks JSON."""
        told = b"".join((b'{"id":', request_id, b',"result":', result, b"}"))
        self.put(self.header(len(told)) + told)

    def rename(self, name: str) -> None:
        """The peer has said what it is called."""
        self.name = name
        self.label = f"{name}#{self.number}"
