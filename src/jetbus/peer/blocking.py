"""``Peer``: the same names as ``PeerAsync``, but every call waits for its answer. Safe from any thread.

    with jetbus.Peer("jet://localhost") as peer:
        peer.set("pump/speed", 1200)
        for event in peer.fetch("pump/**"):
            print(event.kind, event.path, event.value)
        peer.set_async("pump/speed", 900, on_result=lambda done: print(done.result()))

It has an event loop of its own in its own thread. A request is written by the thread that asks, straight to the
socket where that is possible, and its answer wakes just that thread. Handlers and callbacks run one at a time in a
second thread, so they may use the peer themselves.

Every request has a twin that does not wait, ``set_async`` for ``set``. It gives a ``concurrent.futures.Future`` and
takes a callback, ``on_result``, so that one thread can have many requests under way. What the bus refuses, also that
there is no connection, is in the future; only a wrong use of Python is raised at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any

from jetbus.errors import NotConnected
from jetbus.peer.aiofaces import take_in
from jetbus.peer.asking import CallParams, SetParams, SetResult, call_args, read_set_result, read_set_value
from jetbus.peer.blockingfaces import Element, Fetch, Method, Mirror, Sorted, State
from jetbus.peer.daemons import words_of
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy
from jetbus.peer.shared import Answer, Slot
from jetbus.peer.threaded import OnResult, Threaded
from jetbus.peer.values import Instant, plain, write_moment
from jetbus.peer.waiting import Waiter
from jetbus.rules import Rule, rule

__all__ = ["Element", "Fetch", "Method", "Mirror", "OnResult", "Peer", "Sorted", "State"]


class Peer(Threaded):
    """A peer whose calls block, usable from any thread.

    >>> with Peer("jet://localhost") as peer:        # doctest: +SKIP
    ...     peer.set("pump/speed", 1200)
    """

    # -- owner

    def add_state(
        self,
        path: str,
        value: Any = None,
        *,
        on_set: Callable[[Any], Any] | None = None,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        type: Any = None,  # noqa: A002
    ) -> State:
        """Own a state. Without ``on_set`` it is read-only; see ``PeerAsync.add_state``."""
        state = self._make_state(path, value, on_set, access, timeout_s, type)
        state.add()
        return state

    def add_state_async(
        self,
        path: str,
        value: Any = None,
        *,
        on_set: Callable[[Any], Any] | None = None,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        type: Any = None,  # noqa: A002
        on_result: OnResult | None = None,
    ) -> Future[State]:
        """Own a state, without waiting; the future has the state."""
        state = self._make_state(path, value, on_set, access, timeout_s, type)
        return self._ask(lambda answer: self._session.add(state._owned, answer), state, on_result)

    def _make_state(
        self,
        path: str,
        value: Any,
        on_set: Callable[[Any], Any] | None,
        access: Mapping[str, Any] | None,
        timeout_s: float | None,
        value_type: Any,
    ) -> State:
        handler = None if on_set is None else self._in_callbacks(on_set)
        return State(self, OwnedState(path, value, handler, access, timeout_s, value_type))

    def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Method:
        """Own a method: an array becomes positional, an object keyword arguments."""
        method = Method(self, OwnedMethod(path, self._in_callbacks(function), access, timeout_s), function)
        method.add()
        return method

    def add_method_async(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
    ) -> Future[Method]:
        """Own a method, without waiting; the future has the method."""
        method = Method(self, OwnedMethod(path, self._in_callbacks(function), access, timeout_s), function)
        return self._ask(lambda answer: self._session.add(method._owned, answer), method, on_result)

    def _add(self, owned: Owned) -> None:
        self._check_may_wait()
        slot = Slot()
        self._session.add(owned, slot)
        slot.wait(self._session.answer_s)

    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], State]:
        """Decorate the ``on_set`` of a state."""
        return lambda on_set: self.add_state(path, value, on_set=on_set, **options)

    def method(self, path: str, **options: Any) -> Callable[[Callable[..., Any]], Method]:
        """Decorate a function to become a method."""
        return lambda function: self.add_method(path, function, **options)

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Send the changes of this thread inside the block as one message."""
        self._session.begin_batch()
        try:
            yield
        finally:
            self._session.end_batch()

    # -- client

    def set(self, path: str, value: Any, *, timeout_s: float | None = None, value_as_result: bool = False) -> SetResult:
        """Ask the owner to set a state. The result tells a warning if the owner adapted the value."""
        params, read = self._make_set(path, value, timeout_s, value_as_result)
        return self._routed("set", params, timeout_s, read, path)  # type: ignore[no-any-return]

    def set_async(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        on_result: OnResult | None = None,
    ) -> Future[SetResult]:
        """Ask the owner to set a state, without waiting."""
        params, read = self._make_set(path, value, timeout_s, value_as_result)
        return self._routed_async("set", params, timeout_s, read, path, on_result)

    def _make_set(
        self, path: str, value: Any, timeout_s: float | None, value_as_result: bool
    ) -> tuple[SetParams, Callable[[Any], SetResult]]:
        """The parameters of a set and the way to read its answer."""
        if value_as_result and words_of(self._session.daemon).drops_value_as_result:
            value_as_result = False
        read = read_set_value if value_as_result else read_set_result
        return SetParams(path, plain(value), timeout_s, value_as_result), read

    def call(self, path: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method with positional or with keyword arguments."""
        return self._routed("call", CallParams(path, call_args(args, kwargs), timeout_s), timeout_s, None, path)

    def call_async(
        self,
        path: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Call a method, without waiting."""
        params = CallParams(path, call_args(args, kwargs), timeout_s)
        return self._routed_async("call", params, timeout_s, None, path, on_result)

    def _routed(
        self, method: str, params: Any, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> Any:
        self._check_may_wait()
        slot = Slot()
        within_s = self._session.patience_s(timeout_s)
        self._session.request_now(method, params, slot, read, within_s, path)
        return slot.wait(within_s, path)

    def _routed_async(
        self,
        method: str,
        params: Any,
        timeout_s: float | None,
        read: Callable[[Any], Any] | None,
        path: str,
        on_result: OnResult | None,
    ) -> Future[Any]:
        answer = Answer()
        try:  # many of these are under way at once, so that the loop writes them together
            self._session.request(method, params, answer, read, self._session.patience_s(timeout_s), path)
        except NotConnected as problem:
            answer.set_exception(problem)
        return self._calling_back(answer, on_result)

    def get(self, text: str | Rule | None = None, *, as_of: Instant | None = None, **keywords: Any) -> dict[str, Any]:
        """The states that match now, or matched at an instant, path to value, in order."""
        return self._run(self._core.get(text, as_of=as_of, **keywords))  # type: ignore[no-any-return]

    def get_async(
        self,
        text: str | Rule | None = None,
        *,
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[dict[str, Any]]:
        """The states that match, without waiting."""
        return self._begin(self._core.get(text, as_of=as_of, **keywords), on_result)

    def fetch(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], None] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        since: Instant | None = None,
        **keywords: Any,
    ) -> Fetch:
        """Be told of everything that matches: iterate over it, or give a callback. See ``PeerAsync.fetch``."""
        fetch = self._make_fetch(text, callback, policy, queue_max, type, since, keywords)
        self._session.fetch(fetch._fetching)
        return fetch

    def fetch_async(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], None] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        since: Instant | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[Fetch]:
        """Fetch; the future has the fetch as soon as the daemon has accepted it."""
        fetch = self._make_fetch(text, callback, policy, queue_max, type, since, keywords)
        return self._fetched(fetch._fetching, fetch, on_result)

    def _make_fetch(
        self,
        text: str | Rule | None,
        callback: Callable[[Any], None] | None,
        policy: Policy,
        queue_max: int,
        value_type: Any,
        since: Instant | None,
        keywords: dict[str, Any],
    ) -> Fetch:
        wanted = rule(text, **keywords)
        fetching = Fetching(
            self._session.next_fetch_id(),
            wanted,
            value_type=value_type,
            policy=policy,
            queue_max=queue_max,
            since=None if since is None else write_moment(since),
        )
        return Sorted(self, fetching, callback) if wanted.sort else Fetch(self, fetching, callback)

    def _fetched(self, fetching: Fetching, face: Any, on_result: OnResult | None) -> Future[Any]:
        def send(answer: Waiter) -> None:
            fetching.waiter = answer
            self._session.fetch(fetching)

        return self._ask(send, face, on_result)

    def mirror(self, text: str | Rule | None = None, *, type: Any = None, **keywords: Any) -> Mirror:  # noqa: A002
        """A live dict of everything that matches."""
        mirror = self._make_mirror(text, type, keywords)
        self._session.fetch(mirror._fetch._fetching)
        return mirror

    def mirror_async(
        self,
        text: str | Rule | None = None,
        *,
        type: Any = None,  # noqa: A002
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[Mirror]:
        """A live dict; the future has it as soon as the daemon has accepted its fetch."""
        mirror = self._make_mirror(text, type, keywords)
        return self._fetched(mirror._fetch._fetching, mirror, on_result)

    def _make_mirror(self, text: str | Rule | None, value_type: Any, keywords: dict[str, Any]) -> Mirror:
        values: dict[str, Any] = {}
        fetching = Fetching(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=value_type,
            callback=functools.partial(take_in, values),
        )
        return Mirror(self, fetching, values)

    def wait_for(self, text: str | Rule | None = None, *, timeout_s: float | None = None, **keywords: Any) -> Event:
        """Wait until something matches, and give the event that told it."""
        return self._run(self._core.wait_for(text, timeout_s=timeout_s, **keywords))  # type: ignore[no-any-return]

    def wait_for_async(
        self,
        text: str | Rule | None = None,
        *,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Future[Event]:
        """The event that tells that something matches, without waiting for it here."""
        return self._begin(self._core.wait_for(text, timeout_s=timeout_s, **keywords), on_result)

    def info(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return self._run(self._core.info())  # type: ignore[no-any-return]

    def info_async(self, *, on_result: OnResult | None = None) -> Future[dict[str, Any]]:
        """What the daemon says of itself, without waiting."""
        return self._begin(self._core.info(), on_result)

    def config(self, **settings: Any) -> None:
        """Tell the daemon about this peer, for instance its ``name``."""
        self._run(self._core.config(**settings))

    def config_async(self, *, on_result: OnResult | None = None, **settings: Any) -> Future[None]:
        """Tell the daemon about this peer, without waiting."""
        return self._begin(self._core.config(**settings), on_result)

    def authenticate(self, user: str, password: str) -> Any:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        return self._run(self._core.authenticate(user, password))

    def authenticate_async(self, user: str, password: str, *, on_result: OnResult | None = None) -> Future[Any]:
        """Log in, without waiting."""
        return self._begin(self._core.authenticate(user, password), on_result)
