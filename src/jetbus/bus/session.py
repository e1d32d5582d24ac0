"""Sessions: connected peers as the bus sees them, with their elements, fetches and dialects."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from jetbus.bus.account import Account
from jetbus.bus.conditions import DUE, GONE, READY, STALLED, Condition
from jetbus.wire.dialects import CLASSIC, Dialect
from jetbus.wire.framing import BATCHES, STREAM, Framing
from jetbus.wire.jsonrpc import RESPONSE_START, RESULT_KEY
from jetbus.wire.lane import SessionCore

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


class Session(SessionCore):
    """A connected peer, from connect to disconnect."""

    __slots__ = (
        "__weakref__",
        "address",
        "auth",
        "awaits_order",
        "awaits_reading",
        "begin_fetch",
        "elements",
        "ended",
        "fetches",
        "header",
        "logins_failed",
        "missed",
        "name",
        "number",
        "past_at",
        "past_count",
        "put",
        "refusal",
        "released",
        "separators",
        "task",
        "task_id",
        "waiting",
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
        self.condition: Condition = READY
        """Decides when its next message is handled. Only ``Serving`` changes it, by the table of ``conditions``."""
        self.past_at = 0.0
        self.past_count = 0
        """Number of values of the past that it sent in the turn at ``past_at``."""
        self.missed = 0
        """Number of events that the journal had dropped when it last had everything of this peer."""
        self.fresh = True
        """True until the first message, by which node-jet 3 peers are recognized."""
        self.waiting: list[bytes] = []
        """Messages that wait, in their order."""
        self.ended = False
        """The peer sends nothing more, and leaves when all that it has sent is handled."""
        self.begin_fetch: Callable[[], None] | None = None
        """Starts the fetch that was put off."""
        self.awaits_order: Callable[[], bool] = _return_false
        """Asked before a fetch starts; True if it has to be put off."""
        self.task: Generator[Step] | None = None
        """Work in short steps that goes on in its next turn."""
        self.task_id = b""
        """The id of the request that the task answers."""
        self.awaits_reading = False
        """The next step of the task follows when the peer has read all that it was sent."""
        self.released: Callable[[], None] = _do_nothing
        """Called when its messages or its task have waited long enough for work outside the bus."""
        self.refusal = ""
        """Reason for which the daemon is to close the connection."""
        self.logins_failed = 0
        self.batches: Batches | None = None
        """Its batches that are not yet answered, where they are answered as a whole."""
        self.speaks_jsonrpc = False
        """True if it is a peer of 2012 that sends ``jsonrpc`` and expects it in all that it receives."""
        self.wants_outcome = False
        """True if the result of a set is to have the new value of the state, where that is not the requested one."""
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

    @property
    def gone(self) -> bool:
        """True once the peer has left the bus."""
        return self.condition is GONE

    @property
    def has_rest(self) -> bool:
        """True if something that the peer has sent is still to be handled, or to be read by it."""
        return bool(self.waiting) or self.condition is DUE or self.condition is STALLED

    def drop_work(self) -> None:
        """Drop the messages that wait, and all that was to be done for this peer."""
        self.waiting = []
        self.task = self.begin_fetch = None

    def let_go(self) -> None:
        """Let go of everything that refers back to this session, so that its memory is freed at once."""
        self.batches = None
        # An open batch has put methods of its own here, which refer to the session.
        self.put, self.header = self.outbox.put, self.framing.header
        self.released, self.awaits_order = _do_nothing, _return_false

    def rename(self, name: str) -> None:
        """Set the name that the peer has chosen."""
        self.name = name
        self.label = self.account.label = f"{name}#{self.number}"


def _do_nothing() -> None: ...


def _return_false() -> bool:
    return False
