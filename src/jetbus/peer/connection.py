"""A connection that lasts: it is made, introduced, made again when it breaks, and closed in the end.

``PeerAsync`` is a ``PeerConnection`` with the verbs of the bus. Everything that knows the event loop, time and the life
of sockets is here; the messages on the connection are the business of the session.

When a connection breaks, the peer tries to come back for ever. It waits a random time up to a limit that doubles with
every attempt (full jitter), so that a thousand peers do not return to a restarted daemon in the same instant. The limit
is reset only when the daemon has answered everything that was sent again: a daemon that accepts a connection and breaks
it right away must not be asked ten times a second.

Course of a reconnect::

    lost            open requests end with ``ConnectionLost``, queued messages are discarded, ``on_loss``
    wait, connect   again and again
                    each attempt tries all addresses of the peer in turn, from the last one on
    introduce       info, config and authenticate in one round trip; nothing else can be sent yet
    restore         add      every state with the value that it has now, every method
                    fetch    every fetch, each followed by an info; its response ends the present matches
                    info     its response comes last: everything is restored, the limit is reset
                    ``on_return``, when all of this is on its way and not yet answered

**Processes.** A fork copies a peer without the threads and the event loop that it needs, and with the socket of its
parent. In the child every use of the copy is refused, and its socket is let go, so that the parent alone decides when
the connection ends.

**Event loops.** Everything happens on the loop on which ``connect`` has run, which is checked for each request.

Requests are not repeated: a peer cannot know whether a set was done before the connection broke. Changes are not queued
without a connection: the add carries the latest value, and a fetch reports only differences (see ``subscription``). A
peer with a buffer sends the others later, as values of the past (see ``buffering``).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import ssl
import threading
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Never, Self, TypeVar
from weakref import WeakSet

from jetbus.errors import ConnectionLost, JetError, NotConnected, Occupied
from jetbus.json_types import JsonObject
from jetbus.peer.address import (
    Endpoint,
    NoAnswer,
    Unreachable,
    describe_failures,
    explain_closing,
    explain_failure,
    explain_silence,
    read_urls,
)
from jetbus.peer.arguments import check_callback, refuse_pickling, refuse_positional
from jetbus.peer.buffer import Buffer
from jetbus.peer.buffering import Buffering, read_buffer_options
from jetbus.peer.callbacks import call_back
from jetbus.peer.codec import make_codec
from jetbus.peer.compat import read_info
from jetbus.peer.elements import Owned, Spawn
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.probe import suggest_address
from jetbus.peer.sending import ANSWER_S
from jetbus.peer.signatures import show_options
from jetbus.peer.transport import Transport, open_transport

log = logging.getLogger("jetbus.peer")

T = TypeVar("T")
OnResult = Callable[[asyncio.Future[Any]], object]
"""Callback of a request: called once, on the peer's event loop, with the future that has the result or the error."""

BACKOFF_S = 0.1
BACKOFF_MAX_S = 10.0
CONNECT_S = 5.0
WAIT_MAX_S = 1.0
"""Longest pause before another attempt while a daemon is waited for."""
CLOSE_S = 2.0
SWEEP_S = 0.25
"""Interval of the check for requests that have timed out."""
BLOCKED_S = 1.0
"""The loop is reported as blocked if that check is later than this."""
BLOCKED_LOG_S = 60.0
"""Interval between two such reports."""
_peers: WeakSet[PeerConnection] = WeakSet()
"""Peers of this process, for a fork."""


def backoff_s(attempt: int, chance: Callable[[], float] = random.random) -> float:
    """Return how long to wait before an attempt to reconnect."""
    # The exponent has a limit of its own: 2.0 ** 1024 overflows, and a peer may try for years.
    return chance() * min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(attempt, 20))


class PeerConnection:
    """One end of a connection to a daemon, on the caller's event loop.

    That is the loop on which ``connect`` runs, or the one that the caller names with ``loop``.
    """

    @show_options()
    def __init__(
        self,
        url: str | None = None,
        *misplaced: Never,
        name: str = "",
        user: str | None = None,
        password: str | None = None,
        wait: bool = False,
        wait_s: float | None = None,
        reconnect: bool = True,
        tls: ssl.SSLContext | None = None,
        answer_s: float = ANSWER_S,
        buffer: str | os.PathLike[str] | None = None,
        buffer_max: int | None = None,
        buffer_share: float | None = None,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        session: Callable[[Spawn], PeerSession] = PeerSession,
    ) -> None:
        """Create a peer; it does nothing until ``connect``.

        ``url`` may name several daemons, ``jet://a,b``, which are tried in turn, also when the connection is lost.

        With ``wait`` connecting waits for a daemon that does not run yet, with ``wait_s`` for so many seconds at most.

        ``answer_s`` is how long the daemon itself may take to answer; owners have a time of their own.

        With ``buffer`` no value of a state is lost while there is no connection: each is kept, ``"memory"`` or in a
        folder, until the daemon has recorded it, and sent later as a value of the past. ``buffer_max`` is the size in
        bytes, by default 64 MiB; ``buffer_share`` the part of the time in which late values are sent, by default 0.5.

        ``loop`` is the event loop that the peer lives on; it need not run yet. Without it, it is the loop that runs
        when the peer connects.

        ``session`` creates the session, for other kinds of peers.
        """
        refuse_positional(url, misplaced)
        check_callback(on_loss, "on_loss")
        check_callback(on_return, "on_return")
        self._addresses = read_urls(url)
        self._address = self._addresses[0]
        """The address of the connection, or of the last attempt."""
        self._wait_s = (float("inf") if wait else 0.0) if wait_s is None else wait_s
        self.name = name
        self._user = user
        self._password = password
        self._reconnect = reconnect
        self._tls = tls
        self._on_loss = on_loss
        self._on_return = on_return
        self._session = session(self._spawn)
        self._session.answer_s = answer_s
        buffering = read_buffer_options(buffer, buffer_max, buffer_share)
        if buffering is not None:
            self._session.buffering = Buffering(self._session, buffering)
            self._session.buffering.call_later = self._call_later
        self._session.on_output = self._schedule_flush
        self._session.on_clash = self._on_clash
        self._session.on_settled = self._on_settled
        self._attempts = 0
        """Number of attempts to reconnect since a daemon last answered everything that was sent again."""
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._closing = False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        """Requests of several steps that were started with a callback."""
        self._flush_scheduled = False
        self._named_loop = loop
        self._loop = loop
        self._thread_id = 0
        """The thread of the loop, once the peer has connected."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._blocked_logged = float("-inf")
        _peers.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_pickling()

    def on_fork(self) -> None:
        """Refuse to be used in this process, which is a copy of the one that the connection belongs to."""
        self._session.abandon(
            f"this peer belongs to process {os.getppid()}, from which this one was forked; create a peer here, for"
            " instance in the initializer of a multiprocessing.Pool"
        )
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abandon()

    @property
    def session(self) -> PeerSession:
        """The conversation with the daemon, for other kinds of peers."""
        return self._session

    def abort(self) -> None:
        """Break the connection at once, as a pulled cable would: open requests fail, and the peer reconnects."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def buffer(self) -> Buffer | None:
        """Values that the daemon has not yet recorded; None for a peer without a buffer."""
        return None if self._session.buffering is None else self._session.buffering.buffer

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the daemon has not taken yet."""
        return 0 if self._transport is None else self._transport.unsent_bytes

    @property
    def connected(self) -> bool:
        """True if there is a connection to the daemon right now."""
        return self._session.connected

    @property
    def url(self) -> str:
        """The daemon's address, without the password."""
        return str(self._address)

    @property
    def open_request_count(self) -> int:
        """Number of requests that wait for their response."""
        return self._session.open_request_count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}, {'connected' if self.connected else 'not connected'}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # -- connecting

    def connect(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Connect to the daemon, introduce and authenticate this peer."""
        return self._begin(self._establish(), on_result)

    async def _establish(self) -> None:
        running = asyncio.get_running_loop()
        # Futures of one loop cannot be awaited on another; the error would otherwise come much later.
        if self._named_loop not in (None, running):
            raise RuntimeError("this peer was given another event loop than the one that runs; connect it there")
        self._session.check_usable()
        if self._session.connected:
            self._check_loop()
            return
        self._loop, self._thread_id = running, threading.get_ident()
        # The caller connects: it may be another daemon than the last time. Reconnecting does not pass here.
        self._session.forget_lengths()
        self._closing = False
        if self._session.buffering is not None:
            self._session.buffering.reopen()
        # Sets the clock of the session. Until then it is 0, and requests sent at 0 would be over at the first sweep.
        self._session.expire(self._loop.time())
        await self._open_patiently()
        self._sweep()

    async def _open_patiently(self) -> None:
        """Connect, and wait for a daemon if the caller wants to; say which address would be right if another one is."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._wait_s, 0
        while True:
            left_s = deadline - loop.time()
            try:
                await self._open_any(min(CONNECT_S, max(left_s, SWEEP_S)) if self._wait_s else CONNECT_S)
                return
            except Unreachable as problem:
                advice = None
                if isinstance(problem, NoAnswer):
                    advice = await asyncio.to_thread(suggest_address, self._address)
                if advice is not None:
                    raise NotConnected(f"no answer in the protocol of {self.url}; {advice}") from None
                if self._closing or loop.time() >= deadline:
                    raise NotConnected(str(problem)) from None  # the class that callers know
                if not attempt:
                    log.error("%s; waiting until there is one", str(problem).partition(";")[0])
            await asyncio.sleep(min(WAIT_MAX_S, backoff_s(attempt), max(0.0, deadline - loop.time())))
            attempt += 1

    async def _open_any(self, within_s: float = CONNECT_S) -> None:
        """Connect to the first address that has a daemon, from the present one on."""
        at = self._addresses.index(self._address)
        problems: list[NotConnected] = []
        for address in (*self._addresses[at:], *self._addresses[:at]):
            self._use_address(address)
            try:
                async with asyncio.timeout(within_s):
                    await self._open()
                return
            except TimeoutError:
                problems.append(NoAnswer(explain_silence(address, within_s)))
            except NotConnected as problem:
                problems.append(problem)
        raise describe_failures(problems)

    def _use_address(self, address: Endpoint) -> None:
        if address != self._address:
            self._address = address
            self._session.forget_lengths()

    async def _open(self) -> None:
        # ``connect`` may be called while the peer is on its way back by itself.
        async with self._opening:
            if self._session.connected:
                return
            # The codec must be there before the first payload can arrive.
            self._session.begin_connection(make_codec(binary=self._address.binary, send=self._session.send))
            self._transport = transport = await self._connect()
            try:
                await self._introduce()
            except BaseException:
                # Also when the time limit cancels it: a connection that is only half introduced must not stay.
                # It is forgotten first, so that ``_on_transport_lost`` ignores the loss that ``abort`` causes.
                self._transport = None
                self._session.on_lost()
                transport.abort()
                raise
            self._session.on_connected()

    async def _connect(self) -> Transport:
        try:
            return await open_transport(self._address, self._tls, self._session.receive, self._on_transport_lost)
        except (OSError, ssl.SSLError) as error:
            kind = NotConnected if isinstance(error, ssl.SSLError) else Unreachable
            raise kind(explain_failure(self._address, error)) from None

    async def _introduce(self) -> None:
        session = self._session
        # config before info: node-jet 3 does not know it, and with batches sends that error with the next answer only.
        requests: JsonObject = {"config": {"name": self.name}} if self.name else {}
        # jetbus then states how long messages may be, before the first one that could be too long.
        requests["info"] = {"limits": True}
        user = self._address.user if self._user is None else self._user
        password = self._address.password if self._password is None else self._password
        if user is not None:
            requests["authenticate"] = {"user": user, "password": password or ""}
        futures = [self._future() for _ in requests]
        # All at once, in one round trip; daemons answer in order.
        for (service, params), future in zip(requests.items(), futures, strict=True):
            session.introduce(service, params, future)
        # With errors among the results: a daemon without ``info`` must not hide the outcome of the login.
        results = dict(zip(requests, await asyncio.gather(*futures, return_exceptions=True), strict=True))
        for service, result in results.items():
            # Daemons may lack info and config, but a login that fails is an error.
            if type(result) is ConnectionLost:
                raise NoAnswer(explain_closing(self._address))
            if isinstance(result, NotConnected) or (service == "authenticate" and isinstance(result, JetError)):
                raise result
        session.daemon = read_info(results["info"])

    # -- closing

    def close(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Close the connection; the elements of this peer leave the bus."""
        return self._begin(self._shut_down(), on_result)

    async def _shut_down(self) -> None:
        if self._session.is_abandoned:
            return
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for subscription in list(self._session.fetches.values()):
            self._session.unfetch(subscription)  # node-jet 3's daemon stumbles over fetches of peers that are gone
        await self._confirm_buffer()
        self._flush()
        # Written before the requests are ended, so that the daemon still hears of the unfetches.
        self._session.on_closed()
        # ``close`` may be called by a handler or a callback, which is one of these tasks and cannot wait for itself.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._finish_begun()
        # From here on ``_on_transport_lost`` does not know this transport: to close it is not a loss.
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            await transport.wait_closed(CLOSE_S)
        if self._session.buffering is not None:
            self._session.buffering.close()

    async def _confirm_buffer(self) -> None:
        """Give the daemon some time to record the values sent so far."""
        buffering = self._session.buffering
        if buffering is None:
            return
        if self._session.connected and buffering.buffer.in_flight:
            future = self._future()
            buffering.sync(future)
            await asyncio.wait([future], timeout=CLOSE_S)
            future.cancel()

    async def _finish_begun(self) -> None:
        """Let requests that were started with a callback end with the error of the closed session."""
        begun = self._begun - {asyncio.current_task()}
        if begun:
            _, unfinished = await asyncio.wait(begun, timeout=CLOSE_S)
            for task in unfinished:
                task.cancel()

    # -- reconnecting

    def _on_transport_lost(self, transport: Transport) -> None:
        if transport is not self._transport:
            return  # it was abandoned before
        self._transport = None
        was_introduced = self._session.connected
        self._session.on_lost()
        # ``connect`` or ``_come_back`` is waiting for the introduction and reports the failure itself.
        if not was_introduced:
            return
        self._call_back(self._on_loss)
        if self._reconnect:
            self._spawn(self._come_back(), lambda _result, _error: None)
        else:
            # Nothing will be reported any more, so programs that iterate get an error instead of waiting for ever.
            for subscription in list(self._session.fetches.values()):
                subscription.end(NotConnected(f"the connection to {self.url} is lost"))
            self._session.fetches.clear()

    def _on_settled(self) -> None:
        self._attempts = 0

    async def _come_back(self) -> None:
        while True:
            await asyncio.sleep(backoff_s(self._attempts))
            self._attempts += 1
            try:
                await self._open_any()
            except NotConnected:
                # Not logged: ``on_loss`` has reported the loss, and a daemon may be away for days.
                continue
            except JetError as error:
                # A password that was changed meanwhile may be changed back; giving up is the owner's decision.
                log.error("%s is back but refuses this peer: %s", self.url, error)
                continue
            self._call_back(self._on_return)
            return

    def _on_clash(self, owned: Owned, error: JetError) -> None:
        """Try again to add something; often the daemon has not yet noticed that our old connection is gone."""
        if not isinstance(error, Occupied):
            log.error("%s could not be added again after a reconnect: %s", owned.path, error)
            return
        log.info("%s is occupied after a reconnect; trying again to add it", owned.path)

        async def try_again() -> None:
            await asyncio.sleep(random.uniform(BACKOFF_S, 1.0))  # noqa: S311
            # It may have been removed meanwhile, or the connection lost again: then the next one adds everything.
            if self._session.connected and owned.added:
                self._session.add_again(owned)

        self._spawn(try_again(), lambda _result, _error: None)

    # -- requests

    def _future(self) -> asyncio.Future[Any]:
        """Create the future of a response."""
        if _get_running_loop() is not self._loop or self._loop is None:
            self._check_loop()
        return self._loop.create_future()  # type: ignore[union-attr]

    def _check_loop(self) -> None:
        """Raise an error unless this peer may be used here: on its event loop, or while that does not run."""
        self._session.check_usable()
        running = _get_running_loop()
        if self._loop is None:
            raise NotConnected("the peer is not connected; connect() it, or use it in an async with block")
        if running is self._loop:
            return
        thread_id = threading.get_ident()
        if self._thread_id not in (0, thread_id):
            raise RuntimeError(
                f"this PeerAsync is used in thread {threading.current_thread().name}, but lives on an event loop in"
                " another; use a Peer, which any thread may use, or asyncio.run_coroutine_threadsafe"
            )
        if running is not None:
            raise RuntimeError(
                "this PeerAsync lives on another event loop than the one that runs; create it on this loop: each"
                " asyncio.run starts a new one"
            )

    def _begin(self, work: Coroutine[Any, Any, T], on_result: OnResult | None) -> Awaitable[T]:
        """Return the work, which runs when it is awaited; with a callback start it at once."""
        if on_result is None:
            return work
        try:
            task = (self._named_loop or asyncio.get_running_loop()).create_task(work)
        except RuntimeError:
            # A coroutine that is dropped before it has run would cause a warning.
            work.close()
            raise
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        task.add_done_callback(functools.partial(call_back, on_result))
        return task

    def _request_with_callback(
        self, on_result: OnResult, method: str, params: Any, future: asyncio.Future[Any], *options: Any
    ) -> None:
        """Send a request that calls back, also while there is no connection."""
        future.add_done_callback(functools.partial(call_back, on_result))
        try:
            self._session.request(method, params, future, *options)
        except NotConnected as error:
            future.set_exception(error)

    def _request(self, method: str, params: Any) -> asyncio.Future[Any]:
        future = self._future()
        self._session.request(method, params, future)
        return future

    # -- the event loop

    def _schedule_flush(self) -> None:
        # Once per turn of the loop: all messages of one turn go out with one write.
        if not self._flush_scheduled and self._loop is not None:
            self._check_loop()
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and (out := self._session.take_out()):
            self._transport.write(out)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_later(delay_s, call)

    def _spawn(self, work: Awaitable[Any], done: Callable[[Any, BaseException | None], None]) -> None:
        task = asyncio.ensure_future(work)
        # The event loop itself refers to tasks only weakly.
        self._tasks.add(task)

        def finish(finished: asyncio.Future[Any]) -> None:
            self._tasks.discard(finished)
            if finished.cancelled():
                done(None, NotConnected("the owner is closing its connection"))
            else:
                error = finished.exception()
                done(None if error else finished.result(), error)

        task.add_done_callback(finish)

    def _sweep(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._loop is not None and not self._closing:
            now = self._loop.time()
            if self._sweeper is not None and now > self._sweeper.when() + BLOCKED_S:
                self._report_blocked(now, now - self._sweeper.when())
            self._session.expire(now)
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _report_blocked(self, now: float, blocked_s: float) -> None:
        """Warn that nothing on the event loop could run, with the remedy."""
        if now >= self._blocked_logged + BLOCKED_LOG_S:
            self._blocked_logged = now
            log.warning(
                "the event loop of %r was blocked for %.1f s, in which it neither sent nor received; do what takes long"
                " in a callback with `await asyncio.to_thread(...)`, or use a Peer, whose callbacks have a thread of"
                " their own (PYTHONASYNCIODEBUG=1 names the callback)",
                self,
                blocked_s,
            )

    def _call_back(self, callback: Callable[[], Any] | None) -> None:
        """Call the callback of a loss or return; it may be ``async``."""
        if callback is None:
            return
        try:
            outcome = callback()
        except Exception:
            log.exception("a callback failed")
            return
        if asyncio.iscoroutine(outcome):
            self._spawn(outcome, _log_error)


def _log_error(_result: Any, error: BaseException | None) -> None:
    if error is not None:
        log.error("a callback failed", exc_info=error)


def _abandon_peers() -> None:
    """Let go of all peers of the parent, right after a fork."""
    for peer in list(_peers):
        peer.on_fork()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_abandon_peers)
