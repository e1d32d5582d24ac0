"""Who waits for a response: whoever asked, or the session itself, which then does what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetbus.errors import ConnectionLost, JetError, MessageTooLong
from jetbus.peer.elements import Owned, OwnedState
from jetbus.peer.fetching import Fetching, Waiter

if TYPE_CHECKING:
    from jetbus.peer.session import Session

__all__ = ["Added", "AddedAgain", "Fetched", "Outcome", "Reaction", "Request", "Settled", "Synced", "Waiter"]


Request = tuple[Waiter, Callable[[Any], Any] | None, float, float, str]
"""A request on its way: who waits, how to read the answer, since when, for how long, and the path that an owner is
asked about; there is none if the daemon answers by itself. The answer to a call is the only one of an owner that is
not read in a way of its own."""


class Reaction:
    """Waits for a response on the session's own behalf."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        """Fine."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Not fine, but nothing to do."""


class Outcome(Reaction):
    """Waiter that is handed something of the peer's own instead of the daemon's bare confirmation."""

    def __init__(self, waiter: Waiter, outcome: Any) -> None:
        self._waiter, self._outcome = waiter, outcome

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, _result: Any, /) -> None:
        self._waiter.set_result(self._outcome)

    def set_exception(self, exception: BaseException, /) -> None:
        self._waiter.set_exception(exception)


class Added(Reaction):
    """Of an add that somebody waits for: what was refused is owned no longer."""

    def __init__(self, session: Session, owned: Owned, waiter: Waiter) -> None:
        self._session, self._owned, self._waiter = session, owned, waiter
        self.path = owned.path

    def set_result(self, result: Any, /) -> None:
        if not self._waiter.done():
            self._waiter.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._session.drop(self._owned)
        if not self._waiter.done():
            self._waiter.set_exception(exception)


class AddedAgain(Reaction):
    """Of an add after a reconnect."""

    def __init__(self, session: Session, owned: Owned) -> None:
        self._session, self._owned = session, owned
        self.path = owned.path

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, MessageTooLong) and isinstance(self._owned, OwnedState):
            self._session.hold_back(self._owned, exception)
        elif isinstance(exception, JetError) and not isinstance(exception, ConnectionLost):
            self._session.on_clash(self._owned, exception)


class Fetched(Reaction):
    """Of a fetch: what was refused has ended."""

    def __init__(self, session: Session, fetching: Fetching) -> None:
        self._session, self._fetching = session, fetching

    def set_result(self, _result: Any, /) -> None:
        self._fetching.accept()

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, ConnectionLost) and not isinstance(exception, MessageTooLong):
            return  # it comes back with the connection
        if isinstance(exception, JetError):
            self._session.fetches.pop(self._fetching.id, None)
            self._fetching.end(exception)


class Settled(Reaction):
    """Of the last request on a new connection: when it is answered, all has been said again."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def set_result(self, _result: Any, /) -> None:
        self._session.settle()

    def set_exception(self, exception: BaseException, /) -> None:
        if not isinstance(exception, ConnectionLost):
            self._session.settle()  # lua-jet knows no such request, but answers it


class Synced(Reaction):
    """Of a request behind a fetch: when it is answered, all that was there has been told."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching

    def set_result(self, _result: Any, /) -> None:
        self._fetching.told_everything()

    def set_exception(self, exception: BaseException, /) -> None:
        if not isinstance(exception, ConnectionLost):
            self._fetching.told_everything()
