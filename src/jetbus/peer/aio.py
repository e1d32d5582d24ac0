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
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Self

from jetbus.errors import JetError, NotConnected, Occupied, TimedOut
from jetbus.peer.address import read_url
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy
from jetbus.peer.line import Line, open_line
from jetbus.peer.session import Session, SetResult, read_set_result
from jetbus.rules import Rule, rule, write_rule
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")

BACKOFF_S = 0.1
BACKOFF_MAX_S = 10.0
CONNECT_S = 5.0
ROUTED_S = 5.0
"""How long daemons wait for an owner unless told otherwise."""
GRACE_S = 2.0
"""How much longer than the daemon a peer waits, for daemons that know no timeouts."""
SWEEP_S = 0.25


class _Future(asyncio.Future[Any]):
    """A response to come. Cancelling it (or the task that awaits it) forgets the request."""

    session: Session
    number: int = 0

    def cancel(self, msg: Any | None = None) -> bool:
        self.session.forget(self.number)
        return super().cancel(msg)


class _Element:
    """What states and methods of ``PeerAsync`` share."""

    def __init__(self, peer: PeerAsync, owned: Owned) -> None:
        self._peer = peer
        self._owned = owned

    @property
    def path(self) -> str:
        """Where it hangs in the tree."""
        return self._owned.path

    @property
    def added(self) -> bool:
        """Whether it is on the bus, or will be as soon as the connection is back."""
        return self._owned.added

    async def add(self) -> None:
        """Hang it into the bus again."""
        await self._peer._add(self._owned)

    async def remove(self) -> None:
        """Take it off the bus; it can be added again."""
        future = self._peer._future()
        self._peer._session.remove(self._owned, future)
        await future


class StateAsync(_Element):
    """A state this peer owns."""

    _owned: OwnedState

    @property
    def value(self) -> Any:
        """Its value as last changed or set."""
        return self._owned.value

    def change(self, value: Any) -> None:
        """Give it a new value and tell the bus."""
        self._peer._session.change(self._owned, value)


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
        self._waiting: asyncio.Future[None] | None = None
        fetching.wake = self._wake

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    async def ready(self) -> Self:
        """Wait until all that was there at the start has been told (and read into the queue)."""
        while not self._fetching.complete and not self._fetching.ended:
            await self._wait()
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for event in self._taken:
            if isinstance(event, Event) and event.problem is not None:
                raise event.problem
            return event
        while True:
            taken = self._fetching.take()
            if taken:
                self._taken = iter(taken)
                return await self.__anext__()
            if self._fetching.ended:
                if self._fetching.error is not None:
                    raise self._fetching.error
                raise StopAsyncIteration
            await self._wait()

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


class MirrorAsync(Mapping[str, Any]):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: PeerAsync, fetching: Fetching, values: dict[str, Any]) -> None:
        self._fetch = FetchAsync(peer, fetching)
        self._values = values

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

    def __getitem__(self, path: str) -> Any:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Mirror({self._values!r})"


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
            await asyncio.wait_for(self._open(), CONNECT_S)
        except TimeoutError:
            raise NotConnected(f"no answer from a daemon at {self.url} within {CONNECT_S:g} s") from None
        self._sweep()

    async def _open(self) -> None:
        session = self._session
        try:
            line = await open_line(self._address, self._tls, session.receive, self._on_line_lost)
        except (OSError, ssl.SSLError) as problem:
            cause = getattr(problem, "strerror", None) or str(problem)
            raise NotConnected(f"no daemon at {self.url} ({cause}); start one with `jetd`, or give its url") from None
        self._line = line
        try:
            await self._introduce()
        except JetError:
            self._line = None
            session.connected = False
            line.transport.abort()
            raise
        session.on_connected()

    async def _introduce(self) -> None:
        session = self._session
        session.connected = True
        session.out.clear()
        waiting = [self._request(b"info", b"{}")]
        if self.name:
            waiting.append(self._request(b"config", jsonrpc.encode({"name": self.name})))
        if self._user is not None:
            credentials = {"user": self._user, "password": self._password or ""}
            waiting.append(self._request(b"authenticate", jsonrpc.encode(credentials)))
        info, *others = await asyncio.gather(*waiting, return_exceptions=True)
        session.daemon = info if isinstance(info, dict) else {}
        for answer in others:
            if isinstance(answer, NotConnected) or (isinstance(answer, JetError) and self._user is not None):
                raise answer
        if isinstance(info, NotConnected):
            raise info

    async def close(self) -> None:
        """Close the connection; what this peer owns leaves the bus."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._flush()
        self._session.on_closed()
        line, self._line = self._line, None
        if line is not None:
            line.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_line_lost(self) -> None:
        if self._line is None or self._closing:
            self._session.on_lost()
            return
        self._line = None
        introduced = bool(self._session.daemon) or self._session.connected
        self._session.on_lost()
        if not introduced:
            return
        _call(self._on_loss)
        if self._reconnect:
            self._spawn(self._come_back(), lambda _result, _problem: None)
        else:
            for fetching in list(self._session.fetches.values()):
                fetching.end(NotConnected(f"the connection to {self.url} is lost"))
            self._session.fetches.clear()

    async def _come_back(self) -> None:
        attempt = 0
        while not self._closing and not self._session.connected:
            await asyncio.sleep(random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_S * 2**attempt)))  # noqa: S311
            attempt = min(attempt + 1, 20)
            with contextlib.suppress(NotConnected, TimeoutError):
                await asyncio.wait_for(self._open(), CONNECT_S)
                _call(self._on_return)
                return

    def _on_clash(self, owned: Owned, error: JetError) -> None:
        """Something could not be added again: often the daemon has not yet given up our own old connection."""
        if not isinstance(error, Occupied):
            log.error("%s could not be added again after a reconnect: %s", owned.path, error)
            return

        async def try_again() -> None:
            await asyncio.sleep(random.uniform(BACKOFF_S, 1.0))  # noqa: S311
            if self._session.connected and owned.added:
                self._session.add_again(owned)

        self._spawn(try_again(), lambda _result, _problem: None)

    # -- plumbing

    def _future(self) -> _Future:
        future = _Future(loop=self._loop)
        future.session = self._session
        return future

    def _request(
        self,
        method: bytes,
        params: bytes,
        *,
        read: Callable[[Any], Any] | None = None,
        deadline: float = float("inf"),
        path: str = "",
    ) -> _Future:
        future = self._future()
        future.number = self._session.request(method, params, future, read=read, deadline=deadline, path=path)
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
        if self._loop is not None and not self._closing:
            self._session.expire(self._loop.time())
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _deadline(self, timeout_s: float | None) -> float:
        assert self._loop is not None  # noqa: S101
        return self._loop.time() + (ROUTED_S if timeout_s is None else timeout_s) + GRACE_S

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
            self._spawn(self._add(owned), self._decorated(path))
            return StateAsync(self, owned)

        return decorate

    def method(self, path: str, **options: Any) -> Callable[[Callable[..., Any]], MethodAsync]:
        """Decorate a function to become a method. It is added at once."""

        def decorate(function: Callable[..., Any]) -> MethodAsync:
            owned = OwnedMethod(path, function, options.get("access"), options.get("timeout_s"))
            self._spawn(self._add(owned), self._decorated(path))
            return MethodAsync(self, owned)

        return decorate

    @staticmethod
    def _decorated(path: str) -> Callable[[Any, BaseException | None], None]:
        def done(_result: Any, problem: BaseException | None) -> None:
            if problem is not None:
                log.error("%s could not be added: %s", path, problem)

        return done

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
        params = b'{"path":%b,"value":%b' % (jsonrpc.encode(path), jsonrpc.encode(value))
        if value_as_result:
            params += b',"valueAsResult":true'
        read = SetResult if value_as_result else read_set_result
        return self._routed(b"set", params, timeout_s, read, path)

    def call(self, path: str, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Awaitable[Any]:
        """Call a method with positional or with keyword arguments."""
        if args and kwargs:
            raise TypeError("a Jet method takes positional or keyword arguments, not both")
        params = b'{"path":%b,"args":%b' % (jsonrpc.encode(path), jsonrpc.encode(kwargs or args))
        return self._routed(b"call", params, timeout_s, None, path)

    def _routed(
        self, method: bytes, params: bytes, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> _Future:
        if timeout_s is not None:
            params += b',"timeout":%b' % jsonrpc.encode(timeout_s)
        return self._request(method, params + b"}", read=read, deadline=self._deadline(timeout_s), path=path)

    async def get(self, text: str | Rule | None = None, **keywords: Any) -> dict[str, Any]:
        """The states that match now, path to value, in order."""
        wanted = rule(text, **keywords)
        params, told_all = write_rule(wanted)
        entries = await self._request(b"get", jsonrpc.encode(params))
        found = {entry["path"]: entry["value"] for entry in entries if "value" in entry}
        if told_all and self._session.daemon.get("name") == "jetbus":
            return found
        test = wanted.matches_value
        return {
            path: value for path, value in found.items() if wanted.matches_path(path) and (test is None or test(value))
        }

    def fetch(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], None] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        **keywords: Any,
    ) -> FetchAsync:
        """Be told of everything that matches, now and from now on: iterate over it, or give a callback.

        The rule is text (``"plant/** value>7"``), a ``Rule``, keywords (``starts_with="plant/"``) or several of these.
        With ``sort_by`` it is a sorted fetch that gives the current list.
        """
        return self._fetch(text, keywords, callback=callback, policy=policy, queue_max=queue_max, value_type=type)

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

    async def wait_for(self, text: str | Rule, *, timeout_s: float | None = None, **keywords: Any) -> Event:
        """Wait until something matches, and give the event that told it."""
        fetch = self.fetch(text, **keywords)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in fetch:
                    if event.kind != "remove":
                        return event  # type: ignore[no-any-return]
        except TimeoutError:
            raise TimedOut({"path": str(text)}) from None
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


def _call(callback: Callable[[], Any] | None) -> None:
    if callback is None:
        return
    try:
        outcome = callback()
        if asyncio.iscoroutine(outcome):
            asyncio.ensure_future(outcome)  # noqa: RUF006 - its own business
    except Exception:
        log.exception("a callback failed")
