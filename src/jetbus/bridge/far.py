"""The far end of a bridge: how it is followed, and how one can tell that all has been heard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from jetbus.errors import NotConnected
from jetbus.peer.fetching import Event, Fetching
from jetbus.peer.session import Session
from jetbus.rules import Rule


class Following(Fetching):
    """The fetch on the far bus: events go straight through, or wait and replace each other."""

    def __init__(
        self, fetch_id: str, rule: Rule, hear: Callable[[Iterable[Event]], None], is_congested: Callable[[], bool]
    ) -> None:
        super().__init__(fetch_id, rule)
        self._hear = hear
        self._is_congested = is_congested

    def _emit(self, events: list[Event]) -> None:
        if self._pending or self._is_congested():
            self._conflate(events)
        else:
            self._hear(events)


class _Then:
    """Waits for an answer, whatever it is."""

    def __init__(self, work: Callable[[], object], lost: bool) -> None:
        self._work, self._lost = work, lost

    def done(self) -> bool:
        return False

    def set_result(self, _result: Any, /) -> None:
        self._work()

    def set_exception(self, exception: BaseException, /) -> None:
        if self._lost or not isinstance(exception, NotConnected):
            self._work()


def after(session: Session, work: Callable[[], object], *, lost: bool = False) -> None:
    """Do something when the daemon has answered, so that all is known that it said before; or the line is lost."""
    with contextlib.suppress(NotConnected):
        session.request("info", {}, _Then(work, lost))
