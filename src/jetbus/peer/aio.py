"""``PeerAsync``: a peer on the caller's asyncio event loop, with many requests in flight.

    async with jetbus.PeerAsync("jet://localhost") as peer:
        speed = await peer.add_state("pump/speed", 0, on_set=lambda rpm: min(rpm, 3000))
        await peer.set("pump/valve", "open")
        async for event in peer.fetch("pump/** value>7"):
            print(event.kind, event.path, event.value)

The connection is kept: when it breaks, the peer comes back by itself, adds what it owns again and continues its
fetches.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Self

from jetbus.errors import JetError, NotConnected, Occupied, TimedOut
from jetbus.peer.address import read_url
from jetbus.peer.daemons import words_of
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.faces import ElementFace, MirrorFace, StateFace
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy, arranged, matches
from jetbus.peer.line import Line, open_line
from jetbus.peer.session import Session, SetResult, call_params, read_set_result, read_set_value, set_params
from jetbus.peer.values import Instant, read_value, write_moment
from jetbus.rules import Rule, rule
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")

BACKOFF_S = 0.1
BACKOFF_MAX_S = 10.0
CONNECT_S = 5.0
CLOSE_S = 2.0
SWEEP_S = 0.25


def backoff_s(attempt: int, chance: Callable[[], float] = random.random) -> float:
    """How long to wait before an attempt to come back: anything up to a limit that doubles (full jitter)."""
    return chance() * min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(attempt, 20))


class _Element(ElementFace):
    """What states and methods of ``PeerAsync`` share."""

    def __init__(self, peer: PeerAsync, owned: Owned) -> None:
        super().__init__(peer._session, owned)
        self._peer = peer

    async def add(self) -> None:
        """Hang it into the bus again."""
        await self._peer._add(self._owned)

    async def remove(self) -> None:
        """Take it off the bus; it can be added again."""
        future = self._peer._future()
        self._session.remove(self._owned, future)
        await future


class StateAsync(_Element, StateFace):
    """A state this peer owns."""


class MethodAsync(_Element):
    """A method this peer owns; calling it calls the function."""

    _owned: OwnedMethod

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owned.function(*args, **kwargs)


class FetchAsync:
    """A running fetch: iterate over it for its events. ``async with`` or ``close()`` ends it."""

    def __init__(self, peer: PeerAsync, fetching: Fetching) -> None:
        self._peer = peer
        self._fetching = fetching
        self._taken: Iterator[Any] = iter(())
        self._something = asyncio.Event()
        fetching.wake = self._something.set

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    async def _wait(self) -> None:
        self._something.clear()
        await self._something.wait()

    async def ready(self) -> Self:
        """Wait until all that was there at the start has been told (and read into the queue)."""
        while not self._fetching.complete and not self._fetching.ended:
            await self._wait()
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    async def __aiter__(self) -> AsyncGenerator[Any]:
        # Whoever stops in the middle finds the rest in _taken.
        while True:
            for event in self._taken:
                if isinstance(event, Event) and event.problem is not None:
                    raise event.problem
                yield event
            if not await self._more():
                return

    async def __anext__(self) -> Any:
        while True:
            for event in self._taken:
                if isinstance(event, Event) and event.problem is not None:
                    raise event.problem
                return event
            if not await self._more():
                raise StopAsyncIteration

    async def _more(self) -> bool:
        """Wait for more to take; false at the end."""
        fetching = self._fetching
        while not (taken := fetching.take()):
            if fetching.ended:
                if fetching.error is not None:
                    raise fetching.error
                return False
            await self._wait()
        self._taken = iter(taken)
        return True

    def close(self) -> None:
        """End the fetch."""
        self._peer._session.unfetch(self._fetching)

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_exc: object) -> None:
        self.close()


class SortedAsync(FetchAsync):
    """A sorted fetch: ``items`` is always the current list, iterating gives each new one."""

    @property
    def items(self) -> list[Event]:
        """The current list."""
        return self._fetching.items


def take_in(values: dict[str, Any], event: Event) -> None:
    """Follow an event in a mirror."""
    if event.problem is not None:
        log.error("the mirror keeps the old value: %s", event.problem)
    elif event.kind == "remove":
        values.pop(event.path, None)
    else:
        values[event.path] = event.value


class MirrorAsync(MirrorFace):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: PeerAsync, fetching: Fetching, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._fetch = FetchAsync(peer, fetching)

    async def ready(self) -> Self:
        """Wait for the first full picture."""
        await self._fetch.ready()
        return self

    def close(self) -> None:
        """Stop following the bus; the last picture stays."""
        self._fetch.close()

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_exc: object) -> None:
        self.close()


class PeerAsync:
    """A peer on the caller's event loop.

    >>> async with PeerAsync("jet://localhost") as peer:        # doctest: +SKIP
    ...     await peer.set("pump/speed", 1200)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "",
        user: str | None = None,
        password: str | None = None,
        reconnect: bool = True,
        tls: ssl.SSLContext | None = None,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
    ) -> None:
        self._address = read_url(url)
        self.name = name
        self._user = user if user is not None else self._address.user
        self._password = password if password is not None else self._address.password
        self._reconnect = reconnect
        self._tls = tls
        self._on_loss = on_loss
        self._on_return = on_return
        self._session = Session(spawn=self._spawn)
        self._session.on_output = self._schedule_flush
        self._session.on_clash = self._on_clash
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self._closing = False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._flush_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # -- connection

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the daemon right now."""
        return self._session.connected

    @property
    def url(self) -> str:
        """Where the daemon is, without password."""
        return str(self._address)

    @property
    def open_request_count(self) -> int:
        """How many requests wait for their response."""
        return self._session.open_request_count

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect to the daemon, introduce and authenticate this peer."""
        if self._session.connected:
            return
        self._loop = asyncio.get_running_loop()
        self._closing = False
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._open()
        except TimeoutError:
            raise NotConnected(
                f"no answer from a daemon at {self.url} within {CONNECT_S:g} s; is it a Jet daemon that listens there?"
            ) from None
        self._sweep()

    async def _open(self) -> None:
        async with self._opening:
            if self._session.connected:
                return
            self._line = line = await self._connect()
            try:
                await self._introduce()
            except BaseException:
                self._line = None
                self._session.on_lost()
                line.transport.abort()
                raise
            self._session.on_connected()

    async def _connect(self) -> Line:
        try:
            return await open_line(self._address, self._tls, self._session.receive, self._on_line_lost)
        except (OSError, ssl.SSLError) as problem:
            cause = getattr(problem, "strerror", None) or str(problem)
            raise NotConnected(f"no daemon at {self.url} ({cause}); start one with `jetd`, or give its url") from None

    async def _introduce(self) -> None:
        session = self._session
        session.out.clear()
        asked: dict[bytes, Any] = {b"info": {}}
        if self.name:
            asked[b"config"] = {"name": self.name}
        if self._user is not None:
            asked[b"authenticate"] = {"user": self._user, "password": self._password or ""}
        waiting = [self._future() for _ in asked]
        for (service, params), future in zip(asked.items(), waiting, strict=True):
            session.introduce(service, jsonrpc.encode(params), future)
        answers = dict(zip(asked, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        for service, answer in answers.items():
            if isinstance(answer, NotConnected) or (service == b"authenticate" and isinstance(answer, JetError)):
                raise answer
        session.daemon = answers[b"info"] if isinstance(answers[b"info"], dict) else {}

    async def close(self) -> None:
        """Close the connection; what this peer owns leaves the bus."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for fetching in list(self._session.fetches.values()):
            self._session.unfetch(fetching)  # node-jet 3's daemon stumbles over fetches of peers that are gone
        self._flush()
        self._session.on_closed()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        line, self._line = self._line, None
        if line is not None:
            line.close()
            await line.closed(CLOSE_S)

    def _on_line_lost(self, line: Line) -> None:
        if line is not self._line:
            return  # it was given up before
        self._line = None
        introduced = self._session.connected
        self._session.on_lost()
        if not introduced:
            return
        self._call_back(self._on_loss)
        if self._reconnect:
            self._spawn(self._come_back(), lambda _result, _problem: None)
        else:
            for fetching in list(self._session.fetches.values()):
                fetching.end(NotConnected(f"the connection to {self.url} is lost"))
            self._session.fetches.clear()

    async def _come_back(self) -> None:
        for attempt in itertools.count():
            await asyncio.sleep(backoff_s(attempt))
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._open()
            except (NotConnected, TimeoutError):
                continue
            except JetError as problem:
                log.error("%s is there again but refuses this peer: %s", self.url, problem)
                continue
            self._call_back(self._on_return)
            return

    def _on_clash(self, owned: Owned, error: JetError) -> None:
        """Something could not be added again: often the daemon has not yet given up our own old connection."""
        if not isinstance(error, Occupied):
            log.error("%s could not be added again after a reconnect: %s", owned.path, error)
            return
        log.info("%s is occupied after a reconnect; adding it is tried again", owned.path)

        async def try_again() -> None:
            await asyncio.sleep(random.uniform(BACKOFF_S, 1.0))  # noqa: S311
            if self._session.connected and owned.added:
                self._session.add_again(owned)

        self._spawn(try_again(), lambda _result, _problem: None)

    # -- plumbing

    def _future(self) -> asyncio.Future[Any]:
        if self._loop is None:
            raise NotConnected("the peer is not connected; connect() it, or use it in an async with block")
        return self._loop.create_future()

    def _request(self, method: bytes, params: bytes) -> asyncio.Future[Any]:
        future = self._future()
        self._session.request(method, params, future)
        return future

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._loop is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._session.out
        if out and self._line is not None:
            self._session.out = []
            self._line.write(out)

    def _spawn(self, work: Awaitable[Any], done: Callable[[Any, BaseException | None], None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def finish(finished: asyncio.Future[Any]) -> None:
            self._tasks.discard(finished)
            if finished.cancelled():
                done(None, NotConnected("the owner closes"))
            else:
                problem = finished.exception()
                done(None if problem else finished.result(), problem)

        task.add_done_callback(finish)

    def _sweep(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._loop is not None and not self._closing:
            self._session.expire(self._loop.time())
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _call_back(self, callback: Callable[[], Any] | None) -> None:
        """Call what is to be called on loss or return; it may be ``async``."""
        if callback is None:
            return
        try:
            outcome = callback()
        except Exception:
            log.exception("a callback failed")
            return
        if asyncio.iscoroutine(outcome):
            self._spawn(outcome, _log_problem)

    # -- owner

    async def add_state(
        self,
        path: str,
        value: Any = None,
        *,
        on_set: Callable[[Any], Any] | None = None,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        type: Any = None,  # noqa: A002
    ) -> StateAsync:
        """Own a state. Without ``on_set`` it is read-only.

        ``on_set`` gets the value asked for: it returns None to accept it, another value (or ``Adapted``) to adapt it,
        ``UNCHANGED`` to accept without a change, or raises to refuse. It may be ``async``. With ``type`` the value is
        read as that type, and what does not fit is refused before ``on_set`` sees it.
        """
        owned = OwnedState(path, value, on_set, access, timeout_s, type)
        await self._add(owned)
        return StateAsync(self, owned)

    async def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> MethodAsync:
        """Own a method: an array becomes positional, an object keyword arguments. The function may be ``async``."""
        owned = OwnedMethod(path, function, access, timeout_s)
        await self._add(owned)
        return MethodAsync(self, owned)

    async def _add(self, owned: Owned) -> None:
        future = self._future()
        self._session.add(owned, future)
        await future

    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], StateAsync]:
        """Decorate the ``on_set`` of a state. It is added at once; ``await state.add()`` is not needed."""

        def decorate(on_set: Callable[[Any], Any]) -> StateAsync:
            owned = OwnedState(
                path, value, on_set, options.get("access"), options.get("timeout_s"), options.get("type")
            )
            self._add_aside(owned)
            return StateAsync(self, owned)

        return decorate

    def method(self, path: str, **options: Any) -> Callable[[Callable[..., Any]], MethodAsync]:
        """Decorate a function to become a method. It is added at once."""

        def decorate(function: Callable[..., Any]) -> MethodAsync:
            owned = OwnedMethod(path, function, options.get("access"), options.get("timeout_s"))
            self._add_aside(owned)
            return MethodAsync(self, owned)

        return decorate

    def _add_aside(self, owned: Owned) -> None:
        def done(_result: Any, problem: BaseException | None) -> None:
            if problem is not None:
                log.error("%s could not be added: %s", owned.path, problem)

        future = self._future()
        self._session.add(owned, future)
        self._spawn(future, done)

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
        self, path: str, value: Any, *, timeout_s: float | None = None, value_as_result: bool = False
    ) -> Awaitable[SetResult]:
        """Ask the owner to set a state. The result tells a warning if the owner adapted the value."""
        params = set_params(path, value, timeout_s, value_as_result)
        return self._routed(b"set", params, timeout_s, read_set_value if value_as_result else read_set_result, path)

    def call(self, path: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Awaitable[Any]:
        """Call a method with positional or with keyword arguments."""
        if args and kwargs:
            raise TypeError("a Jet method takes positional or keyword arguments, not both")
        return self._routed(b"call", call_params(path, kwargs or args, timeout_s), timeout_s, None, path)

    def _routed(
        self, method: bytes, params: bytes, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> asyncio.Future[Any]:
        future = self._future()
        self._session.request(method, params, future, read, self._session.patience_s(timeout_s), path)
        return future

    async def get(
        self, text: str | Rule | None = None, *, as_of: Instant | None = None, **keywords: Any
    ) -> dict[str, Any]:
        """The states that match now, path to value, in order; or those that matched at an instant, from the journal."""
        wanted = rule(text, **keywords)
        params, trusting = words_of(self._session.daemon).ask(wanted)
        if as_of is not None:
            params["asOf"] = write_moment(as_of)
        entries = await self._request(b"get", jsonrpc.encode(params))
        found = {entry["path"]: read_value(entry["value"]) for entry in entries if "value" in entry}
        if not trusting:
            found = {path: value for path, value in found.items() if matches(wanted, path, value)}
        return dict(arranged(wanted.sort, found)) if wanted.sort and "sort" not in params else found

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
    ) -> FetchAsync:
        """Be told of everything that matches, now and from now on: iterate over it, or give a callback.

        The rule is text (``"plant/** value>7"``), a ``Rule``, keywords (``starts_with="plant/"``) or several of these.
        With ``sort_by`` it is a sorted fetch that gives the current list. With ``since`` (a datetime, RFC 3339 text or
        ``"-2h"``) it begins then: with what matched, and all that has happened to it up to now, from the journal.
        """
        moment = None if since is None else write_moment(since)
        return self._fetch(
            text, keywords, callback=callback, policy=policy, queue_max=queue_max, value_type=type, since=moment
        )

    def _fetch(self, text: str | Rule | None, keywords: dict[str, Any], **options: Any) -> FetchAsync:
        wanted = rule(text, **keywords)
        fetching = Fetching(self._session.next_fetch_id(), wanted, **options)
        fetch = SortedAsync(self, fetching) if wanted.sort else FetchAsync(self, fetching)
        self._session.fetch(fetching)
        return fetch

    def mirror(self, text: str | Rule | None = None, *, type: Any = None, **keywords: Any) -> MirrorAsync:  # noqa: A002
        """A live dict of everything that matches. ``await mirror.ready()`` waits for the first full picture."""
        values: dict[str, Any] = {}
        fetching = Fetching(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=type,
            callback=functools.partial(take_in, values),
        )
        mirror = MirrorAsync(self, fetching, values)
        self._session.fetch(fetching)
        return mirror

    async def wait_for(
        self, text: str | Rule | None = None, *, timeout_s: float | None = None, **keywords: Any
    ) -> Event:
        """Wait until something matches, and give the event that told it."""
        fetch = self.fetch(text, **keywords)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in fetch:
                    if event.kind != "remove":
                        return event  # type: ignore[no-any-return]
        except TimeoutError:
            raise TimedOut({"path": str(text or keywords)}) from None
        finally:
            fetch.close()
        raise NotConnected(f"the connection to {self.url} is lost")

    async def info(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return await self._request(b"info", b"{}")  # type: ignore[no-any-return]

    async def config(self, **settings: Any) -> None:
        """Tell the daemon about this peer, for instance its ``name``."""
        await self._request(b"config", jsonrpc.encode(settings))
        self.name = settings.get("name", self.name)

    async def authenticate(self, user: str, password: str) -> Any:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        groups = await self._request(b"authenticate", jsonrpc.encode({"user": user, "password": password}))
        self._user, self._password = user, password
        return groups


def _log_problem(_result: Any, problem: BaseException | None) -> None:
    if problem is not None:
        log.error("a callback failed", exc_info=problem)
