"""Ports: interfaces of the bus to the outside, as protocols that the daemon and the tests implement.

    Outbox, Part    carry frames to one peer
    Worker          runs blocking work in threads
    Users, Logins   check passwords and know the rights of users
    EventRecorder   receives every event, for the journal
    History, Seam   answer queries about the past

The bus itself does no I/O, starts no thread and is given its clock, so it can be tested with the simple implementations
at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from jetbus.bus.access import Auth
from jetbus.bus.rights import PathRules
from jetbus.errors import JetError
from jetbus.json_types import Json
from jetbus.rules import Rule

if TYPE_CHECKING:
    from jetbus.bus.audiences import Audience
    from jetbus.bus.replay import PastElement, PastEvent
    from jetbus.bus.session import Session


Outcome = TypeVar("Outcome")
"""Result of work that a ``Worker`` runs."""


class Part(Protocol):
    """An entry of an outbox other than bytes: a chunk that outboxes share, or one member's view of it."""

    coexists: ClassVar[bool]
    """True if several chunks of this kind may be open in an outbox at the same time, because their order is free."""

    def joined(self) -> bytes:
        """Return the content as one bytes object."""

    def apart(self) -> tuple[bytes, ...]:
        """Return the content in pieces, of which the large ones are shared with other outboxes."""


class Outbox(Protocol):
    """The way out to one peer. ``jetbus.bus.audiences`` explains chunks and why their order holds."""

    slow: bool
    """True while the peer reads more slowly than the bus sends. It is then sent events one by one."""

    @property
    def closed(self) -> bool:
        """True once the peer is gone and reads nothing more."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that a slow peer has not read yet."""

    def put(self, frame: bytes) -> None:
        """Send one whole frame or several."""

    def batch(self) -> None:
        """Write all messages of a turn as one batch from now on; each comes with a comma in front of it."""

    def put_chunk(self, audience: Audience, chunk: Part) -> None:
        """Send the content of a chunk, including events added to it until the audience closes it."""

    def lend(self, audience: Audience, /) -> list[bytes]:
        """Return the list of frames to send, for an audience with a single member, which needs no chunk."""

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None:
        """Send one event to a slow peer; a newer change of the same path may replace it."""

    def forget(self, audience: Audience) -> None:
        """Stop replacing queued events of an audience, because the peer has left it."""

    def forget_all(self) -> None:
        """Do the same for all audiences, because the peer is gone."""

    def note_gathered(self, size: int) -> None:
        """Count bytes of a long event that was added to a chunk or a list of frames; too many make the peer slow."""

    def awaits_window(self, audience: Audience) -> bool:
        """Return True if a slow peer will be sent the whole window of a sorted fetch, and needs no events before it."""


class Worker(Protocol):
    """Runs work that would block the bus, or has to wait."""

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None], /) -> None:
        """Run ``work`` in a thread, then ``done`` on the loop with its result or the ``JetError`` it raised."""

    def later(self, delay_s: float, then: Callable[[], None], /) -> None:
        """Run ``then`` after a delay."""


class Users(Protocol):
    """The users that may authenticate. Calls that check or change something may block; refusals are ``JetError``s."""

    @property
    def path_rules(self) -> PathRules | None:
        """Rights by path, None if there are none."""

    def auth_of(self, name: str) -> Auth | None:
        """Return the rights of a user, None if the user does not exist."""

    def auth_of_process(self, credentials: Any) -> Auth | None:
        """Return the rights of a process on a Unix socket without a password."""

    def auth_of_certificate(self, names: Iterable[str]) -> Auth | None:
        """Return the rights that a certificate gives without a password."""

    def authenticate(self, name: str, password: str) -> Auth: ...

    def passwd(self, actor: str | None, name: str, password: str) -> None: ...

    def add_user(self, actor: str | None, name: str, password: str, groups: list[str]) -> None: ...

    def remove_user(self, actor: str | None, name: str) -> None: ...


class Logins(Protocol):
    """Queue of password checks, which run in threads and in an order that makes guessing slow."""

    def attempt(
        self, session: Session, user: str, work: Callable[[], Auth], done: Callable[[Auth | JetError], None], /
    ) -> None:
        """Run ``work``, which checks a password, when it is its turn, then ``done`` as a ``Worker`` does."""

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None], /) -> None:
        """Run other work that hashes passwords."""


class LastEvent(Protocol):
    """The event that was recorded last."""

    @property
    def event(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def value(self) -> bytes: ...

    @property
    def seq(self) -> int: ...

    @property
    def ts_us(self) -> int: ...


class EventRecorder(Protocol):
    """Receiver of every event of the bus. Values and details are JSON text."""

    @property
    def now_us(self) -> int:
        """The instant that events are recorded with, in microseconds."""

    @property
    def missed(self) -> int:
        """Number of events that were dropped because they could not be recorded."""

    @property
    def note(self) -> Callable[[tuple[str, bytes, str]], None]:
        """Function to call with path, value and peer when a state changes. It is replaced after each commit."""

    def find_last(self) -> LastEvent | None:
        """Return the event that was recorded last, provided that it is not committed yet."""

    @property
    def rows(self) -> list[Any] | None:
        """List that ``note`` extends by path, value and peer, if it does nothing else; replaced after each commit."""

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
        source_us: int | None = None,
        quality: bytes | None = None,
        /,
    ) -> None:
        """Record an event of another kind. An ``add`` has the schema of its element in ``detail``."""

    def append_described(
        self, path: str, value: bytes, peer: str, source_us: int | None, quality: bytes | None, past: bool, /
    ) -> None:
        """Record a change with more than the value from its owner.

        ``source_us`` is the owner's time, in microseconds since 1970, and ``quality`` is JSON text; each is None if the
        owner has left it out. A value that is ``past`` is older than the present one, which stays the state.
        """


class Seam(Protocol):
    """A point in time: events before it are being written, events after it are collected if wanted."""

    def wait(self) -> int:
        """Block until the events before the seam are written and return the last seq. Call it in a thread."""

    def end(self) -> list[PastEvent] | None:
        """Return the events collected since, without blocking, or None if there are too many. Call it once."""


class PastReader(Protocol):
    """Reads the past page by page."""

    def read_page(self, seam: Seam | None, /) -> tuple[list[PastEvent], bool]:
        """Return the next events, and True if these are all up to the seam or, without one, up to the last seam.

        The first page has a seam. It blocks, so threads call it.
        """


class History(Protocol):
    """Answers queries about the past. ``as_of`` blocks, so threads call it."""

    def check(self, auth: Auth | None, instant: Json, /) -> None:
        """Raise if this user may not query the past, or if the instant cannot be parsed."""

    def as_of(self, instant: Json, rule: Rule, /) -> list[PastElement]:
        """Return the elements with a path that matched the rule at an instant."""

    def since(self, instant: Json, rule: Rule, /) -> PastReader:
        """Return a reader of the tree at an instant, as adds, and of the events since then."""

    def bring_up_to_date(self, rule: Rule | None = None, /) -> Seam:
        """Start writing all events so far; with a rule, collect later events of its paths."""

    def when_recorded(self, then: Callable[[], None], /) -> None:
        """Call ``then`` on the loop once all events so far are recorded for good, or dropped."""


# -- simple implementations


class UnqueuedLogins:
    """Logins without a queue: every password is checked as soon as the worker can."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def attempt(
        self, _session: Session, _user: str, work: Callable[[], Auth], done: Callable[[Auth | JetError], None]
    ) -> None:
        self._worker.run(work, done)

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None]) -> None:
        self._worker.run(work, done)


class ImmediateWorker:
    """Worker without threads or clock, which runs everything immediately."""

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None]) -> None:
        outcome: Outcome | JetError
        try:
            outcome = work()
        except JetError as error:
            outcome = error
        done(outcome)

    def later(self, _delay_s: float, then: Callable[[], None]) -> None:
        then()


class DiscardingOutbox:
    """Outbox of the built-in elements, which discards everything."""

    slow = False
    closed = False
    unread_bytes = 0

    def put(self, frame: bytes) -> None: ...

    def batch(self) -> None: ...

    def put_chunk(self, audience: Audience, chunk: Part) -> None: ...

    def lend(self, _audience: Audience) -> list[bytes]:
        return []

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None: ...

    def forget(self, audience: Audience) -> None: ...

    def forget_all(self) -> None: ...

    def note_gathered(self, size: int) -> None: ...

    def awaits_window(self, _audience: Audience) -> bool:
        return False
