"""``PeerAsync``: a peer on the caller's asyncio event loop, with many requests in flight.

    async with jetbus.PeerAsync("jet://localhost") as peer:
        speed = await peer.add_state("pump/speed", 0, on_set=lambda rpm: min(rpm, 3000))
        await peer.set("pump/valve", "open")
        async for event in peer.fetch("pump/** value>7"):
            print(event.kind, event.path, event.value)

The connection is kept: when it breaks, the peer comes back by itself, adds what it owns again and continues its
fetches.

Every request is awaited, or is given ``on_result``. Then it begins at once, without being awaited, and the callback is
called on the peer's loop with the future of the result when the response arrives, or when it is clear that none will.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from jetbus.errors import NotConnected, TimedOut, UnknownService
from jetbus.peer.aiofaces import ElementAsync, FetchAsync, MethodAsync, MirrorAsync, SortedAsync, StateAsync, take_in
from jetbus.peer.asking import CallParams, SetParams, SetResult, call_args, read_set_result, read_set_value
from jetbus.peer.connected import Connected, OnResult
from jetbus.peer.daemons import words_of
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy, arranged, call_back, matches
from jetbus.peer.values import JSON_TYPES, Instant, plain, read_value, write_moment
from jetbus.peer.waiting import Outcome
from jetbus.rules import Rule, rule

__all__ = [
    "ElementAsync",
    "FetchAsync",
    "MethodAsync",
    "MirrorAsync",
    "PeerAsync",
    "SortedAsync",
    "StateAsync",
]

log = logging.getLogger("jetbus.peer")

T = TypeVar("T")


class PeerAsync(Connected):
    """A peer on the caller's event loop.

    >>> async with PeerAsync("jet://localhost") as peer:        # doctest: +SKIP
    ...     await peer.set("pump/speed", 1200)
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
        on_result: OnResult | None = None,
    ) -> Awaitable[StateAsync]:
        """Own a state. Without ``on_set`` it is read-only.

        ``on_set`` gets the value asked for: it returns None to accept it, another value (or ``Adapted``) to adapt it,
        ``UNCHANGED`` to accept without a change, or raises to refuse. It may be ``async``. With ``type`` the value is
        read as that type, and what does not fit is refused before ``on_set`` sees it.
        """
        owned = OwnedState(path, value, on_set, access, timeout_s, type)
        return self._begin(self._add(owned, StateAsync(self, owned)), on_result)

    def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
    ) -> Awaitable[MethodAsync]:
        """Own a method: an array becomes positional, an object keyword arguments. The function may be ``async``."""
        owned = OwnedMethod(path, function, access, timeout_s)
        return self._begin(self._add(owned, MethodAsync(self, owned)), on_result)

    async def _add(self, owned: Owned, face: T) -> T:
        """Add a state or method; returns what the caller is handed for it."""
        future = self._future()
        self._session.add(owned, future)
        await future
        return face

    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], StateAsync]:
        """Decorate the ``on_set`` of a state. It is added at once; ``await state.add()`` is not needed."""

        def decorate(on_set: Callable[[Any], Any]) -> StateAsync:
            owned = OwnedState(
                path, value, on_set, options.get("access"), options.get("timeout_s"), options.get("type")
            )
            return self._add_aside(owned, StateAsync(self, owned), options.get("on_result"))

        return decorate

    def method(self, path: str, **options: Any) -> Callable[[Callable[..., Any]], MethodAsync]:
        """Decorate a function to become a method. It is added at once."""

        def decorate(function: Callable[..., Any]) -> MethodAsync:
            owned = OwnedMethod(path, function, options.get("access"), options.get("timeout_s"))
            return self._add_aside(owned, MethodAsync(self, owned), options.get("on_result"))

        return decorate

    def _add_aside(self, owned: Owned, face: T, on_result: OnResult | None) -> T:
        """Add a state or method without waiting; without a callback a refusal is logged."""

        def done(_result: Any, problem: BaseException | None) -> None:
            if problem is not None:
                log.error("%s could not be added: %s", owned.path, problem)

        future = self._future()
        self._session.add(owned, future if on_result is None else Outcome(future, face))
        if on_result is None:
            self._spawn(future, done)
        else:
            future.add_done_callback(functools.partial(call_back, on_result))
        return face

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Send what happens inside as one message."""
        self._session.begin_batch()
        try:
            yield
        finally:
            self._session.end_batch()

    # -- client

    def set(
        self,
        path: str,
        value: Any,
        *,
        timeout_s: float | None = None,
        value_as_result: bool = False,
        on_result: OnResult | None = None,
    ) -> Awaitable[SetResult]:
        """Ask the owner to set a state. The result tells a warning if the owner adapted the value.

        With ``value_as_result`` it has the value that the state took, except on cjet, which does not ask the owner for
        it.
        """
        future, session = self._future(), self._session
        params = SetParams(path, value if type(value) in JSON_TYPES else plain(value))
        within_s, read = session.routed_s, read_set_result
        if timeout_s is not None:
            params.timeout, within_s = timeout_s, session.patience_s(timeout_s)
        if value_as_result and not words_of(session.daemon).drops_value_as_result:
            params.valueAsResult, read = True, read_set_value
        if on_result is None:
            session.request("set", params, future, read, within_s, path)
        else:
            self._request_calling_back(on_result, "set", params, future, read, within_s, path)
        return future

    def call(
        self,
        path: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **kwargs: Any,
    ) -> Awaitable[Any]:
        """Call a method with positional or with keyword arguments."""
        given: Any = call_args(args, kwargs) if kwargs else args
        for value in args:
            if type(value) not in JSON_TYPES:
                given = call_args(args, kwargs)
                break
        future, session = self._future(), self._session
        params, within_s = CallParams(path, given), session.routed_s
        if timeout_s is not None:
            params.timeout, within_s = timeout_s, session.patience_s(timeout_s)
        if on_result is None:
            session.request("call", params, future, None, within_s, path)
        else:
            self._request_calling_back(on_result, "call", params, future, None, within_s, path)
        return future

    def get(
        self,
        text: str | Rule | None = None,
        *,
        as_of: Instant | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Awaitable[dict[str, Any]]:
        """The states that match now, path to value, in order; or those that matched at an instant, from the journal."""
        return self._begin(self._get(rule(text, **keywords), as_of), on_result)

    async def _get(self, wanted: Rule, as_of: Instant | None) -> dict[str, Any]:
        params, trusting = words_of(self._session.daemon).ask(wanted)
        if as_of is not None:
            params["asOf"] = write_moment(as_of)
        try:
            entries = await self._request("get", params)
        except UnknownService:
            if as_of is not None:
                raise
            return await self._gathered(wanted)
        found = {entry["path"]: read_value(entry["value"]) for entry in entries if "value" in entry}
        if not trusting:
            found = {path: value for path, value in found.items() if matches(wanted, path, value)}
        return dict(arranged(wanted.sort, found)) if wanted.sort and "sort" not in params else found

    async def _gathered(self, wanted: Rule) -> dict[str, Any]:
        """What a get gives, by a fetch that ends at once: daemons of lua-jet have no get."""
        fetching = Fetching(self._session.next_fetch_id(), replace(wanted, sort=None))
        async with self.start_fetch(fetching):
            found = {event.path: event.value for event in fetching.take() if not event.is_method}
        return dict(arranged(wanted.sort, found)) if wanted.sort else found

    def fetch(
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
    ) -> FetchAsync:
        """Be told of everything that matches, now and from now on: iterate over it, or give a callback.

        The rule is text (``"plant/** value>7"``), a ``Rule``, keywords (``starts_with="plant/"``) or several of these.
        With ``sort_by`` it is a sorted fetch that gives the current list. With ``since`` (a datetime, RFC 3339 text or
        ``"-2h"``) it begins then: with what matched, and all that has happened to it up to now, from the journal.
        ``on_result`` is called when the daemon has accepted or refused the fetch.
        """
        moment = None if since is None else write_moment(since)
        fetching = Fetching(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            callback=callback,
            policy=policy,
            queue_max=queue_max,
            value_type=type,
            since=moment,
        )
        return self.start_fetch(fetching, on_result)

    def start_fetch(self, fetching: Fetching, on_result: OnResult | None = None) -> FetchAsync:
        """Start a fetch that is described already; ``fetch`` is the usual way."""
        fetch = SortedAsync(self, fetching) if fetching.rule.sort else FetchAsync(self, fetching)
        self._start(fetching, fetch, on_result)
        return fetch

    def _start(self, fetching: Fetching, face: Any, on_result: OnResult | None) -> None:
        """Send a fetch; the callback gets what the caller is handed for it."""
        if on_result is None:
            self._session.fetch(fetching)
            return
        future = self._future()
        future.add_done_callback(functools.partial(call_back, on_result))
        fetching.waiter = Outcome(future, face)
        try:
            self._session.fetch(fetching)
        except NotConnected as problem:
            fetching.end(problem)

    def mirror(
        self,
        text: str | Rule | None = None,
        *,
        type: Any = None,  # noqa: A002
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> MirrorAsync:
        """A live dict of everything that matches. ``await mirror.ready()`` waits for the first full picture."""
        values: dict[str, Any] = {}
        fetching = Fetching(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=type,
            callback=functools.partial(take_in, values),
        )
        mirror = MirrorAsync(self, fetching, values)
        self._start(fetching, mirror, on_result)
        return mirror

    def wait_for(
        self,
        text: str | Rule | None = None,
        *,
        timeout_s: float | None = None,
        on_result: OnResult | None = None,
        **keywords: Any,
    ) -> Awaitable[Event]:
        """Wait until something matches, and give the event that told it."""
        return self._begin(self._wait_for(rule(text, **keywords), str(text or keywords), timeout_s), on_result)

    async def _wait_for(self, wanted: Rule, shown: str, timeout_s: float | None) -> Event:
        fetch = self.fetch(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in fetch:
                    if event.kind != "remove":
                        return event  # type: ignore[no-any-return]
        except TimeoutError:
            raise TimedOut({"path": shown}) from None
        finally:
            fetch.close()
        raise NotConnected(f"the connection to {self.url} is lost")

    def info(self, *, on_result: OnResult | None = None) -> Awaitable[dict[str, Any]]:
        """What the daemon says of itself; nothing if it is one of lua-jet."""
        return self._begin(self._info(), on_result)

    async def _info(self) -> dict[str, Any]:
        try:
            return await self._request("info", {})  # type: ignore[no-any-return]
        except UnknownService:
            return {}

    def config(self, *, on_result: OnResult | None = None, **settings: Any) -> Awaitable[None]:
        """Tell the daemon about this peer, for instance its ``name``."""
        return self._begin(self._config(settings), on_result)

    async def _config(self, settings: dict[str, Any]) -> None:
        await self._request("config", settings)
        self.name = settings.get("name", self.name)

    def authenticate(self, user: str, password: str, *, on_result: OnResult | None = None) -> Awaitable[Any]:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        return self._begin(self._authenticate(user, password), on_result)

    async def _authenticate(self, user: str, password: str) -> Any:
        groups = await self._request("authenticate", {"user": user, "password": password})
        self._user, self._password = user, password
        return groups
