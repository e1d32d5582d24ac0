"""Requests: the parameters of a set and a call, the result of a set, and waiters, which receive responses.

A waiter is anything with the three methods of ``Waiter``. The caller of a request waits with an ``asyncio.Future``, a
``concurrent.futures.Future`` or a ``BlockingWaiter``. The session has waiters of its own for requests that it sends on
its own behalf, for instance to add a state again after a reconnect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from jetbus.errors import ConnectionLost, JetError, MessageTooLong, TimedOut
from jetbus.json_types import Json, JsonObject
from jetbus.peer.elements import Owned, OwnedState
from jetbus.peer.values import (
    JSON_TYPES,
    check_finite,
    decode_value,
    encode_args,
    encode_value,
    may_be_non_finite,
    read_value,
)

if TYPE_CHECKING:
    from jetbus.peer.peer_session import PeerSession
    from jetbus.peer.subscription import Subscription


def daemon_timed_out(within_s: float) -> TimedOut:
    """Return the error for a request that the daemon itself has not answered."""
    return TimedOut(
        None,
        f"the daemon has not answered for {within_s:g} s; it may hang or be stopped: look after it, or connect again",
    )


# -- parameters and results


class SetParams(Struct, gc=False, omit_defaults=True):
    """Parameters of a set; the value is of a type in ``FINITE_TYPES``, or one that ``Codec.prepare`` returned."""

    path: str
    value: Any
    timeout: float | None = None
    valueAsResult: bool = False  # noqa: N815 - the wire's name


class CallParams(Struct, gc=False, omit_defaults=True):
    """Parameters of a call; the arguments are of types in ``FINITE_TYPES``, or come from ``prepare_args``."""

    path: str
    args: Any
    timeout: float | None = None


def check_unanswered(**options: object) -> None:
    """Raise if a request without an answer has options about the answer."""
    given = [name for name, value in options.items() if value]
    if given:
        raise TypeError(f"with no_reply=True nobody answers; leave out {' and '.join(given)}")


def make_args(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
    """Return the arguments of a call for ``CallParams``."""
    if args and kwargs:
        raise TypeError("a Jet method takes positional or keyword arguments, not both")
    return prepare_args(path, kwargs or args)


def prepare_args(path: str, args: Any) -> Raw:
    """Encode arguments as JSON; raise ``InvalidValue`` if there is NaN or an infinity in them."""
    text = encode_args(args)
    if may_be_non_finite(text):
        check_finite(args, path)
    return Raw(text)


class SetResult(Struct, frozen=True, gc=False):
    """The result of a set: the new value of the state, and a warning if the owner adapted it."""

    value: Any = None
    """Value that the state has after the set; None if this peer may not see it."""
    warning_code: int | None = None
    warning: str | None = None

    @property
    def adapted(self) -> bool:
        """True if the owner took another value than the requested one."""
        return self.warning_code is not None


DONE: JsonObject = {}
"""The result of nearly every set, as owners of jetbus send it."""
_NODE_JET_3_KEYS = {"path", "value"}
"""Members of the result that owners of node-jet 3 send."""


_BECAME_KEYS = {"became"}
"""Members of the result that jetbus sends if the new value of the state is not the requested one."""


class SetReader(Struct, gc=False):
    """Reads the result of a set, whichever library the owner uses."""

    requested: Any
    """Value that the state takes unless the owner says otherwise."""

    def __call__(self, result: Json) -> SetResult:
        """Return the result; only jetbus adds the value to a warning of the owner."""
        # Each library has its own way to say that a set is done.
        if result is None or result is True or result == DONE:
            return SetResult(self._get_value())
        if isinstance(result, dict) and result.keys() == _NODE_JET_3_KEYS:
            return SetResult(self._get_value())
        if isinstance(result, dict):
            warning, became = result.get("warning"), read_value(result.get("became"))
            if isinstance(warning, dict):
                return SetResult(became, warning.get("code"), warning.get("message"))
            if result.keys() == _BECAME_KEYS:
                return SetResult(became)
        return SetResult(read_value(result))

    def _get_value(self) -> Any:
        """Return the requested value as other peers see it: datetimes and the like have become JSON."""
        value = self.requested
        return value if type(value) in JSON_TYPES else read_value(decode_value(encode_value(value)))


def read_set_value(result: Json) -> SetResult:
    """Read the result of a set that asked for the value."""
    return SetResult(read_value(result))


# -- waiters


class Waiter(Protocol):
    """Receiver of a response; an ``asyncio.Future`` is one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


OpenRequest = tuple[Waiter, Callable[[Any], Any] | None, float, float, str]
"""A request without a response yet: the waiter, the function that reads the result, when it was sent, how long to wait,
and the path of the element if its owner must answer (empty if the daemon does). A tuple, since every request needs one.

A request for an owner without a function is a call; ``from_wire`` needs to know, since cjet reports the same error for
the set of a method and the call of a state."""


class BlockingWaiter:
    """Waiter for a thread that blocks until the response is there.

    A lock that is acquired twice is all it takes; ``threading.Event`` has a condition and a second lock around it.
    """

    __slots__ = ("_done", "_error", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._done = True
        self._lock.release()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._done = True
        self._lock.release()

    def wait(self, timeout_s: float, path: str = "") -> Any:
        """Block until there is a response; return its result or raise its error."""
        # Acquired in the constructor, released by the response.
        # A negative timeout would mean to wait for ever, so a deadline in the past counts as zero.
        if not self._lock.acquire(timeout=-1 if timeout_s == float("inf") else max(timeout_s, 0.0)):
            # A response that comes later is ignored.
            self._done = True
            raise TimedOut({"path": path}) if path else daemon_timed_out(timeout_s)
        if self._error is not None:
            raise self._error
        return self._result


class SessionWaiter:
    """Waiter of the session itself, which ignores the response unless a subclass says otherwise."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        """Ignore the result."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Ignore the error."""


class HandleWaiter(SessionWaiter):
    """Waiter that passes on a handle instead of the daemon's bare confirmation."""

    def __init__(self, waiter: Waiter, handle: Any) -> None:
        self._waiter, self._handle = waiter, handle

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, _result: Any, /) -> None:
        self._waiter.set_result(self._handle)

    def set_exception(self, exception: BaseException, /) -> None:
        self._waiter.set_exception(exception)


class AdaptedWaiter(HandleWaiter):
    """Waiter of the get that follows a set if the owner adapted the value: warnings come without the value."""

    def __init__(self, waiter: Waiter, outcome: SetResult) -> None:
        super().__init__(waiter, outcome)
        self._outcome = outcome

    def set_result(self, entries: Json, /) -> None:
        value = read_value(entries[0].get("value")) if isinstance(entries, list) and entries else None
        self._waiter.set_result(replace(self._outcome, value=value))

    def set_exception(self, _exception: BaseException, /) -> None:
        self._waiter.set_result(self._outcome)  # lua-jet does not know get; the state is set nevertheless


class AddWaiter(SessionWaiter):
    """Waiter of an add: a state or method that was refused is no longer owned."""

    def __init__(self, session: PeerSession, owned: Owned, waiter: Waiter) -> None:
        self._session, self._owned, self._waiter = session, owned, waiter
        self.path = owned.path

    def set_result(self, result: Any, /) -> None:
        self._session.confirm_add(self._owned)
        if not self._waiter.done():
            self._waiter.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._session.drop(self._owned)
        # Else it would be added again after the next reconnect.
        if not self._waiter.done():
            self._waiter.set_exception(exception)


class ReaddWaiter(SessionWaiter):
    """Waiter of an add after a reconnect."""

    def __init__(self, session: PeerSession, owned: Owned) -> None:
        self._session, self._owned = session, owned
        self.path = owned.path

    def set_result(self, _result: Any, /) -> None:
        self._session.confirm_add(self._owned)

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, MessageTooLong) and isinstance(self._owned, OwnedState):
            # Nothing is sent here: either ``add_again`` tries once more at once, or the next connection does.
            self._session.use_fallback(self._owned, exception)
        elif isinstance(exception, JetError) and not isinstance(exception, ConnectionLost):
            self._session.on_clash(self._owned, exception)


class FetchWaiter(SessionWaiter):
    """Waiter of a fetch: one that was refused has ended."""

    def __init__(self, session: PeerSession, subscription: Subscription) -> None:
        self._session, self._subscription = session, subscription

    def set_result(self, _result: Any, /) -> None:
        self._subscription.confirm()

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, ConnectionLost) and not isinstance(exception, MessageTooLong):
            return  # the fetch is sent again on the next connection
        if isinstance(exception, JetError):
            self._session.fetches.pop(self._subscription.id, None)
            self._subscription.end(exception)


class SyncWaiter(SessionWaiter):
    """Waiter of the request behind a fetch: its response comes after everything that was there."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def set_result(self, _result: Any, /) -> None:
        self._subscription.finish_sync()

    def set_exception(self, exception: BaseException, /) -> None:
        if not isinstance(exception, ConnectionLost):
            self._subscription.finish_sync()  # lua-jet does not know the request, but answers in order


class SettleWaiter(SessionWaiter):
    """Waiter of the last request on a new connection: with its response everything has been sent again."""

    def __init__(self, session: PeerSession) -> None:
        self._session = session

    def set_result(self, _info: Json, /) -> None:
        self._session.settle()

    def set_exception(self, exception: BaseException, /) -> None:
        if not isinstance(exception, ConnectionLost):
            self._session.settle()
