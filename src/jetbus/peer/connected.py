"""A connection that is kept: made, introduced, come back to when it is lost, and closed.

``PeerAsync`` is this with the verbs of the bus. Here is all that knows of sockets' comings and goings, of the event
loop and of time; what is said on the connection is the session's business.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.peer.address import read_url
from jetbus.peer.elements import Owned, Spawn
from jetbus.peer.fetching import call_back
from jetbus.peer.line import Line, open_line
from jetbus.peer.session import ANSWER_S, Session

log = logging.getLogger("jetbus.peer")

T = TypeVar("T")
OnResult = Callable[[asyncio.Future[Any]], object]
"""Callback of a request: called once, on the peer's event loop, with the future that has the result or the error."""

BACKOFF_S = 0.1
BACKOFF_MAX_S = 10.0
CONNECT_S = 5.0
CLOSE_S = 2.0
SWEEP_S = 0.25


def backoff_s(attempt: int, chance: Callable[[], float] = random.random) -> float:
    """How long to wait before an attempt to come back: anything up to a limit that doubles (full jitter)."""
    return chance() * min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(attempt, 20))


class Connected:
    """One end of a connection to a daemon, on the caller's event loop.

    That is the loop on which ``connect`` runs, or the one that the caller names with ``loop``.
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
        answer_s: float = ANSWER_S,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        session: Callable[[Spawn], Session] = Session,
    ) -> None:
        """``answer_s`` is how long the daemon itself may take to answer; owners have a time of their own.

        ``loop`` is the event loop that the peer lives on; it need not run yet. Without it, it is the loop that runs
        when the peer connects.

        ``session`` makes the conversation that this peer leads, for those who build another kind of peer on it.
        """
        self._address = read_url(url)
        self.name = name
        self._user = user if user is not None else self._address.user
        self._password = password if password is not None else self._address.password
        self._reconnect = reconnect
        self._tls = tls
        self._on_loss = on_loss
        self._on_return = on_return
        self._session = session(self._spawn)
        self._session.answer_s = answer_s
        self._session.on_output = self._schedule_flush
        self._session.on_clash = self._on_clash
        self._session.on_settled = self._on_settled
        self._attempts = 0
        """How often this peer has tried to come back since a daemon last answered all that it had to say."""
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self._closing = False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        """Requests of several steps that were begun with a callback."""
        self._flush_scheduled = False
        self._named_loop = loop
        self._loop = loop
        self._future: Callable[[], asyncio.Future[Any]] = self._no_future if loop is None else loop.create_future
        """Makes what an answer is awaited with."""
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def session(self) -> Session:
        """The conversation with the daemon, for those who build on it."""
        return self._session

    @property
    def unsent_bytes(self) -> int:
        """What the daemon has not taken yet."""
        return 0 if self._line is None else self._line.transport.get_write_buffer_size()

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

    def connect(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Connect to the daemon, introduce and authenticate this peer."""
        return self._begin(self._establish(), on_result)

    async def _establish(self) -> None:
        running = asyncio.get_running_loop()
        if self._named_loop not in (None, running):
            raise RuntimeError("this peer was given another event loop than the one that runs; connect it there")
        if self._session.connected:
            return
        self._loop = running
        self._session.forget_lengths()
        self._future = self._loop.create_future
        self._closing = False
        self._session.expire(self._loop.time())
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
        session.forget_out()
        asked: dict[str, Any] = {"info": {}}
        if self.name:
            asked["config"] = {"name": self.name}
        if self._user is not None:
            asked["authenticate"] = {"user": self._user, "password": self._password or ""}
        waiting = [self._future() for _ in asked]
        for (service, params), future in zip(asked.items(), waiting, strict=True):
            session.introduce(service, params, future)
        answers = dict(zip(asked, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        for service, answer in answers.items():
            if isinstance(answer, NotConnected) or (service == "authenticate" and isinstance(answer, JetError)):
                raise answer
        session.daemon = answers["info"] if isinstance(answers["info"], dict) else {}

    def close(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Close the connection; what this peer owns leaves the bus."""
        return self._begin(self._shut_down(), on_result)

    async def _shut_down(self) -> None:
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
        await self._end_begun()
        line, self._line = self._line, None
        if line is not None:
            line.close()
            await line.closed(CLOSE_S)

    async def _end_begun(self) -> None:
        """Let requests that were begun with a callback end with what the closed session has told them."""
        begun = self._begun - {asyncio.current_task()}
        if begun:
            _, unfinished = await asyncio.wait(begun, timeout=CLOSE_S)
            for task in unfinished:
                task.cancel()

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

    def _on_settled(self) -> None:
        self._attempts = 0

    async def _come_back(self) -> None:
        while True:
            await asyncio.sleep(backoff_s(self._attempts))
            self._attempts += 1
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

    def _no_future(self) -> asyncio.Future[Any]:
        raise NotConnected("the peer is not connected; connect() it, or use it in an async with block")

    def _begin(self, work: Coroutine[Any, Any, T], on_result: OnResult | None) -> Awaitable[T]:
        """Return the work, which runs when it is awaited; with a callback begin it at once."""
        if on_result is None:
            return work
        try:
            task = (self._named_loop or asyncio.get_running_loop()).create_task(work)
        except RuntimeError:
            work.close()
            raise
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        task.add_done_callback(functools.partial(call_back, on_result))
        return task

    def _request_calling_back(
        self, on_result: OnResult, method: str, params: Any, future: asyncio.Future[Any], *options: Any
    ) -> None:
        """Send a request that calls back, also when there is no connection to send it on."""
        future.add_done_callback(functools.partial(call_back, on_result))
        try:
            self._session.request(method, params, future, *options)
        except NotConnected as problem:
            future.set_exception(problem)

    def _request(self, method: str, params: Any) -> asyncio.Future[Any]:
        future = self._future()
        self._session.request(method, params, future)
        return future

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._loop is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._line is not None and (out := self._session.take_out()):
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


def _log_problem(_result: Any, problem: BaseException | None) -> None:
    if problem is not None:
        log.error("a callback failed", exc_info=problem)
