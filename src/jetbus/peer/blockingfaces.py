"""What ``Peer`` hands out: states, methods, fetches, sorted fetches and mirrors. Waiting blocks here."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from jetbus.errors import TimedOut, TooSlow
from jetbus.peer.elements import Owned
from jetbus.peer.faces import ElementFace, MirrorFace, StateFace
from jetbus.peer.fetching import Event, Fetching, call_back
from jetbus.peer.shared import Slot

if TYPE_CHECKING:
    from jetbus.peer.blocking import OnResult, Peer

log = logging.getLogger("jetbus.peer")


class Element(ElementFace):
    """What states and methods of ``Peer`` share."""

    def __init__(self, peer: Peer, owned: Owned) -> None:
        super().__init__(peer._session, owned)
        self._peer = peer

    def add(self) -> None:
        """Hang it into the bus again."""
        self._peer._add(self._owned)

    def remove(self) -> None:
        """Take it off the bus; it can be added again."""
        self._peer._check_may_wait()
        slot = Slot()
        self._session.remove(self._owned, slot)
        slot.wait(self._session.answer_s)

    def add_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Hang it into the bus again, without waiting."""
        return self._peer._ask(lambda answer: self._session.add(self._owned, answer), None, on_result)

    def remove_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Take it off the bus, without waiting."""
        return self._peer._ask(lambda answer: self._session.remove(self._owned, answer), None, on_result)


class State(Element, StateFace):
    """A state this peer owns."""


class Method(Element):
    """A method this peer owns; calling it calls the function."""

    def __init__(self, peer: Peer, owned: Owned, function: Callable[..., Any]) -> None:
        super().__init__(peer, owned)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Fetch:
    """A running fetch: iterate over it for its events. ``with`` or ``close()`` ends it."""

    def __init__(self, peer: Peer, fetching: Fetching, callback: Callable[[Any], None] | None = None) -> None:
        self._peer = peer
        self._fetching = fetching
        self._callback = callback
        self._telling = False
        self._taken: deque[Any] = deque()
        self._something = threading.Event()
        fetching.wake = self._wake

    def _wake(self) -> None:
        self._something.set()
        if self._callback is not None and not self._telling:
            self._telling = True
            self._peer._submit(self._tell, self._callback)

    def _tell(self, callback: Callable[[Any], None]) -> None:
        """Tell the callback, in its thread, all that waits; the queue between has a limit as for an iterator."""
        self._telling = False
        for event in self._fetching.take():
            call_back(callback, event)
        if isinstance(self._fetching.error, TooSlow):
            log.error("a callback was too slow, its fetch has ended: %s", self._fetching.error)

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait until all that was there at the start has been told."""
        while not self._fetching.complete and not self._fetching.ended:
            self._wait(timeout_s)
            self._something.clear()
        self._something.set()  # another thread may wait for events
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    def _wait(self, timeout_s: float | None) -> None:
        self._peer._check_may_wait()
        if not self._something.wait(timeout_s):
            raise TimedOut({"fetch": self._fetching.id})

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Any:
        """The next event; raises ``TimedOut`` if there is none in time."""
        while True:
            try:
                event = self._taken.popleft()
            except IndexError:
                event = None
            if event is None:  # waited for here, so that whoever interrupts it sees nothing of the empty queue
                self._more(timeout_s)
                continue
            if isinstance(event, Event) and event.problem is not None:
                raise event.problem
            return event

    def _more(self, timeout_s: float | None) -> None:
        """Wait for more to take."""
        fetching = self._fetching
        while True:
            self._something.clear()
            taken = fetching.take()
            if taken:
                self._taken.extend(taken)
                return
            if fetching.ended:
                raise fetching.error or StopIteration
            self._wait(timeout_s)

    def close(self) -> None:
        """End the fetch."""
        self._peer._session.unfetch(self._fetching)

    def close_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """End the fetch; the future is done when the daemon has confirmed it."""
        session = self._peer._session
        return self._peer._ask(lambda answer: session.unfetch(self._fetching, answer), None, on_result)

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Sorted(Fetch):
    """A sorted fetch: ``items`` is always the current list, iterating gives each new one."""

    @property
    def items(self) -> list[Event]:
        """The current list."""
        return self._fetching.items


class Mirror(MirrorFace):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: Peer, fetching: Fetching, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._fetch = Fetch(peer, fetching)

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait for the first full picture."""
        self._fetch.ready(timeout_s)
        return self

    def close(self) -> None:
        """Stop following the bus; the last picture stays."""
        self._fetch.close()

    def close_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Stop following the bus; the future is done when the daemon has confirmed it."""
        return self._fetch.close_async(on_result=on_result)

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()
