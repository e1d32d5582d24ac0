"""Sessions: connected peers as the bus sees them, with their elements, fetches and dialects."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from jetbus.bus.account import Account
from jetbus.wire.dialects import CLASSIC, Dialect
from jetbus.wire.framing import BATCHES, STREAM, Framing
from jetbus.wire.jsonrpc import RESPONSE_START, RESULT_KEY

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audiences import Audience
    from jetbus.bus.batches import Batches
    from jetbus.bus.ports import Outbox
    from jetbus.bus.routes import Route
    from jetbus.bus.tasks import Step
    from jetbus.bus.tree import Element


LONG_BYTES = 64 * 1024
"""Results above this length are copied once only."""


class Session:
    """A connected peer, from connect to disconnect."""

    __slots__ = (
        "__weakref__",
        "account",
        "address",
        "auth",
        "batches",
        "closed",
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
        "on_put_off",
        "outbox",
        "pulls",
        "put",
        "put_off",
        "refused",
        "released",
        "routes",
        "separators",
        "speaks_jsonrpc",
        "stalled",
        "task",
        "task_id",
        "turn_over",
        "waiting",
        "wants_outcome",
    )

    def __init__(
        self,
        number: int,
        outbox: Outbox,
        framing: Framing = STREAM,
        dialect: Dialect = CLASSIC,
        account: Account | None = None,
    ) -> None:
        self.number = number
        self.account = account = account or Account.alone()
        self.outbox = outbox
        self.put = outbox.put
        self.framing = framing
        self.header = framing.header
        self.dialect = dialect
        self.name = ""
        self.label = f"#{number}"
        """Name and connection number, for logs and the journal."""
        self.address = account.address_name
        """Host it connects from, without a port; failed logins are counted by it."""
        account.label = self.label
        self.auth: Auth | None = None
        self.elements: dict[str, Element] = {}
        """Elements that it owns, in order of creation."""
        self.fetches: dict[bytes, Audience] = {}
        """Its fetches by id; the id keeps its JSON type."""
        self.routes: dict[bytes, Route] = {}
        """Requests that wait for its answer, oldest first."""
        self.fresh = True
        """True until the first message, by which node-jet 3 peers are recognized."""
        self.held = False
        """Its messages wait until a slow service has responded."""
        self.put_off: Callable[[], None] | None = None
        """Begins the fetch that its messages wait for."""
        self.on_put_off: Callable[[], None] | None = None
        """Called when a fetch is put off; None if its fetches begin at once."""
        self.turn_over = False
        """Its messages wait for its next turn, since the time of this one is used up."""
        self.stalled = False
        """Its messages wait until it has read more of what it was sent."""
        self.task: Generator[Step] | None = None
        """Work that goes on in its next turn; each step is short."""
        self.pulls = False
        """Its task goes on once it has read all that it was sent."""
        self.task_id = b""
        """The id of the request that the task answers."""
        self.waiting: list[bytes] = []
        self.released: Callable[[], None] = _do_nothing
        """Called when its messages need not wait any longer."""
        self.gone = False
        self.closed = False
        """The daemon has closed the connection: nothing that this peer has sent is handled any more."""
        self.refused = ""
        """Reason to close the connection, empty if there is none."""
        self.logins_failed = 0
        self.batches: Batches | None = None
        """Its batches that are not yet answered, where they are answered as a whole."""
        self.speaks_jsonrpc = False
        """True if it is a peer of 2012 that sends ``jsonrpc`` and expects it in all that it receives."""
        self.wants_outcome = False
        """True if the result of a set is to say what the state became, where that is not what was requested."""
        self.separators = ""
        """Separators of paths that it has chosen, empty for those of the bus."""

    def take_batches(self) -> None:
        """Send all messages that are written together as one batch from now on; a WebSocket stays as it is."""
        if self.framing is STREAM:
            # The outbox adds header and brackets when it writes the turn; a message only gets a comma before it.
            self.outbox.batch()
            self.framing, self.header = BATCHES, BATCHES.header

    def send(self, message: bytes) -> None:
        """Send a message to this peer."""
        self.put(self.header(len(message)) + message)

    def answer(self, request_id: bytes, result: bytes) -> None:
        """Send the result of a request to a JSON peer."""
        if len(result) > LONG_BYTES:
            size = len(RESPONSE_START) + len(request_id) + len(RESULT_KEY) + len(result) + 1
            self.put(b"".join((self.header(size), RESPONSE_START, request_id, RESULT_KEY, result, b"}")))
            return
        response = b"".join((RESPONSE_START, request_id, RESULT_KEY, result, b"}"))  # composed here to save a call
        self.put(self.header(len(response)) + response)

    def close(self) -> None:
        """Drop all messages that have not been handled, and those still to come."""
        # Held for good, so that the hot path needs no second flag to skip the messages of closed sessions.
        self.closed = self.held = True
        self.turn_over = self.stalled = self.pulls = False
        self.put_off = self.task = None
        self.waiting = []

    def end(self) -> None:
        """Let go of everything that refers back to this session, so that its memory is freed at once."""
        self.close()
        self.gone = True
        self.batches = None
        # An open batch has put methods of its own here, which refer to the session.
        self.put, self.header = self.outbox.put, self.framing.header
        self.released = _do_nothing
        self.on_put_off = None

    def rename(self, name: str) -> None:
        """Set the name that the peer has chosen."""
        self.name = name
        self.label = self.account.label = f"{name}#{self.number}"


def _do_nothing() -> None: ...
