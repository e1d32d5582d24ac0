"""The daemon: one bus, the sockets it listens on, and its connections.

Everything that touches the bus runs on one event loop, so the bus needs no locks. Work that would block the loop, such
as hashing passwords or reading the journal, runs in threads (``Aside``), which hand their outcome back to the loop::

    event loop       sockets -> Connection -> Turns -> Bus -> SocketOutbox -> Flow.flush -> sockets
    jetd-login       password hashes
    jetd-past        queries about the past
    jetd-journal     writes of the journal
    jetd-aside       the users file
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from jetbus.bus.bus import Bus
from jetbus.bus.ports import Outcome
from jetbus.daemon.admin import AdminMethods
from jetbus.daemon.alarms_process import AlarmsProcess
from jetbus.daemon.announcement import Announcement
from jetbus.daemon.config import SETTINGS, TRANSPORTS, Address, AddressInUse, Config, ConfigError
from jetbus.daemon.connection import BinaryConnection, Connection, StreamConnection, WebSocketConnection
from jetbus.daemon.deflate import BoundedDeflate
from jetbus.daemon.inbound import Inbound
from jetbus.daemon.journaling import Journaling
from jetbus.daemon.logins import Logins
from jetbus.daemon.metrics import REFRESH_S, Metrics, Page
from jetbus.daemon.outbox import Flow
from jetbus.daemon.peer_process import PeerProcess
from jetbus.daemon.radar_process import RadarProcess
from jetbus.daemon.tls import TlsServer
from jetbus.daemon.turns import Turns
from jetbus.daemon.upgrade_logins import check_settings, read_key
from jetbus.daemon.users import Users, UsersFileError
from jetbus.errors import Internal, JetError
from jetbus.loops import keep_alive

log = logging.getLogger("jetbus.daemon")

_FACES: dict[str, type[Connection]] = {
    "tcp": StreamConnection,
    "ws": WebSocketConnection,
    "unix": StreamConnection,
    "binary": BinaryConnection,
    "binary_unix": BinaryConnection,
}
BACKLOG = 1024
ASIDE_THREADS = 2
STOP_S = 2.0
PAGE_READERS_MAX = 50
"""Connections beyond ``connections_max`` that may ask for a page."""
REFUSED_LOG_S = 60.0
"""A line about refused connections is logged no more often than that."""


class Aside:
    """Worker of the bus: runs blocking work in a few threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "jetd-aside", threads: int = ASIDE_THREADS) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None]) -> None:
        def in_thread() -> None:
            outcome: Outcome | JetError
            try:
                outcome = work()
            except JetError as error:
                outcome = error
            except (UsersFileError, ConfigError) as problem:
                # Its text says how to mend the file and has no secrets in it.
                log.error("%s", problem)
                outcome = Internal(str(problem))
            except Exception:
                log.exception("a service failed")
                outcome = Internal("the daemon could not do it; its log says why")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has stopped
                self._loop.call_soon_threadsafe(done, outcome)

        self._threads.submit(in_thread)

    def later(self, delay_s: float, then: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, then)

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Daemon:
    """A Jet daemon.

    >>> daemon = Daemon(Config(tcp=Address("127.0.0.1", 0), ws=None, unix=None))    # doctest: +SKIP
    >>> await daemon.start()                                                        # doctest: +SKIP
    >>> daemon.listening                                                            # doctest: +SKIP
    {'tcp': '127.0.0.1:40123'}
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self._tls = _tls_context(config)
        check_settings(config)
        self.login_key = read_key(config.ws_login_key)
        self.deflate = BoundedDeflate(self)
        self._aside = Aside(self.loop)
        self._history_worker: Aside | None = None
        """Reads the past. A disk that hangs holds up its threads, and not those that log users in."""
        self.bus = Bus(
            tree=config.tree,
            separators=config.separator,
            limits=config,
            timeout_s=config.timeout_s,
            users=Users.load(config.users) if config.users else None,
            worker=self._aside,
            clock=monotonic,
        )
        self.logins = Logins(
            self.loop,
            lambda name, threads: Aside(self.loop, name, threads),
            lambda: self.config,
            self.bus.limit_hits,
        )
        self.bus.logins = self.logins
        self.flow = Flow(self.loop, config.outbox_soft_bytes, config.outbox_hard_bytes, self.bus.limit_hits)
        self.flow.total_bytes = config.outbox_total_bytes
        self.turns = Turns(self.loop, self.bus, self.flow, config.turn_us_max / 1e6)
        self.bus.run_chore = self.turns.run_chore
        self.journaling: Journaling | None = None
        if config.journal is not None:
            self._keep_journal()
        self.metrics = Metrics(self)
        self.bus.refresh = self.metrics.refresh
        self.bus.routes.wake = self._wake_for_routes
        self.bus.staleness.wake = self._wake_for_stale
        self.inbound = Inbound(lambda: self.config, self.bus.limit_hits)
        self.connections: set[Connection] = set()
        self.handshakes: set[asyncio.Task[None]] = set()
        """TLS handshakes that are under way; they count as connections."""
        self._page_readers: set[Connection] = set()
        self._refused = 0
        """Connections refused since the last line about it in the log."""
        self._refused_logged_at = -REFUSED_LOG_S
        self.listening: dict[str, str] = {}
        """Addresses it listens on, by kind, as in the ready line."""
        self.left_out: list[str] = []
        """The kinds that it goes on without, because another program listens on their default address."""
        self._servers: list[asyncio.AbstractServer | TlsServer] = []
        self._socket_files: list[Path] = []
        self.radar: RadarProcess | None = None
        self._beside: list[PeerProcess] = []
        """Peers in processes of their own, Radar among them."""
        self._announcement: Announcement | None = None
        self._routes_timer: asyncio.TimerHandle | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.Task[None]] = []

    def _keep_journal(self) -> None:
        self.journaling = Journaling(self.config, self.loop)
        from jetbus.daemon.journal_api import JournalApi  # needs pyarrow; of a lack of that the journal tells better

        self.bus.record = self.journaling.writer
        self.flow.commit = self.journaling.commit_first
        self.journaling.on_missed = self._close_unsent
        self.bus.history_worker = self._history_worker = Aside(self.loop, "jetd-past")
        self.bus.history = JournalApi(self, self.journaling)

    def _close_unsent(self) -> None:
        """Close the peers that wait for an answer or an event which the journal will never have."""
        unsent = [connection for connection in self.connections if connection.outbox.has_unsent]
        for connection in unsent:
            connection.outbox.abort()
        if unsent:
            log.error(
                "%d peers are closed: journal_fsync is always, and what they wait for is lost; %s",
                len(unsent),
                self.journaling.problem if self.journaling else "",
            )

    # -- start and stop

    async def start(self) -> None:
        """Listen on everything the configuration names."""
        if self.journaling is not None:
            self.journaling.start()
        try:
            for kind in TRANSPORTS:
                await self._listen_if_free(kind)
            if not self.listening:
                raise ConfigError("tcp, ws, unix, binary and binary_unix are all off: the daemon would listen nowhere")
            if self.config.radar is not None:
                self.radar = RadarProcess(self.config, self.listening, _bind("radar", self.config.radar))
                self.listening["radar"] = self.radar.address
                self._beside.append(self.radar)
            if self.config.alarms is not None:
                self._beside.append(AlarmsProcess(self.config, self.listening))
            for process in self._beside:
                process.start()
            if self.config.announce is not None:
                self._announcement = Announcement(self.config, self.listening)
                await asyncio.to_thread(self._announcement.start)
        except BaseException:
            await self.stop()
            raise
        self.metrics.refresh()
        AdminMethods(self)
        self._timers = [
            self.loop.create_task(_every(lambda: REFRESH_S, self._refresh_if_fetched)),
            self.loop.create_task(_every(lambda: self.config.ws_ping_s, self._ping)),
        ]

    async def _listen_if_free(self, kind: str) -> None:
        """Listen on the address of a transport; a default that was not asked for may be taken."""
        address = getattr(self.config, kind)
        if address is None:
            return
        listen: Any = self._listen if isinstance(address, Address) else self._listen_unix
        try:
            self.listening[kind] = await listen(kind, address, _FACES[kind])
        except AddressInUse:
            if kind not in self.config.unasked:
                raise
            self.left_out.append(kind)
            flag = kind.replace("_", "-")
            log.warning("not listening on %s: %s is in use; give --%s another address, or off", kind, address, flag)

    async def _listen(self, kind: str, address: Address, face: type[Connection]) -> str:
        socks = _bind(kind, address)
        for sock in socks:
            make = partial(face, self, kind)
            # One server per socket, because the two loopback addresses are two sockets.
            if self._tls is not None:
                sock.setblocking(False)
                self._servers.append(TlsServer(self, sock, lambda: self._tls, make))
            else:
                self._servers.append(await self.loop.create_server(make, sock=sock, backlog=BACKLOG))
        host, port = socks[0].getsockname()[:2]
        return str(Address(host, port))

    async def _listen_unix(self, kind: str, name: str, face: type[Connection]) -> str:
        abstract = name.startswith("@")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if not abstract:
            _clear_stale_socket(Path(name))
        try:
            sock.bind("\0" + name[1:] if abstract else name)
        except OSError as problem:
            sock.close()
            raise _cannot_listen(kind, name, problem) from None
        if not abstract:
            # Open to every program of the machine whatever the umask, as abstract sockets are; its folder can close it.
            Path(name).chmod(SOCKET_MODE)
            self._socket_files.append(Path(name))
        make = partial(face, self, kind)
        self._servers.append(await self.loop.create_unix_server(make, sock=sock, backlog=BACKLOG))
        return name

    async def stop(self) -> None:
        """Stop listening, close all connections and the journal."""
        # A search that is given up would let the next one start, on a loop that is closed.
        self.bus.preparations.close()
        for timer in self._timers:
            timer.cancel()
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        if self._routes_timer is not None:
            self._routes_timer.cancel()
        if self._announcement is not None:
            await asyncio.to_thread(self._announcement.stop)
        for process in self._beside:
            await process.stop()
        for server in self._servers:
            server.close()
        for handshake in self.handshakes:
            handshake.cancel()
        for connection in list(self.connections):
            if isinstance(connection, WebSocketConnection):
                connection.goodbye()
            connection.outbox.flush()
            # Closing waits for the peer to read the rest, but not for longer than ``STOP_S``.
            connection.transport.close()
        deadline = self.loop.time() + STOP_S
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        for file in self._socket_files:
            file.unlink(missing_ok=True)
        self._aside.stop()
        self.logins.stop()
        if self._history_worker is not None:
            self._history_worker.stop()
        if self.journaling is not None:
            await self.journaling.stop()

    def config_as_listening(self) -> Config:
        """Return the configuration with actual ports in place of 0, to start another daemon at the same addresses."""
        found: dict[str, Any] = {}
        for kind in ("tcp", "ws", "binary"):
            if kind in self.listening:
                asked: Address = getattr(self.config, kind)
                found[kind] = asked._replace(port=int(self.listening[kind].rpartition(":")[2]))
        return dataclasses.replace(self.config, **found)

    # -- connections

    def admit(self, connection: Connection) -> bool:
        """Return True if a new connection may stay."""
        if not self._has_room(connection.address, self.config.connections_max):
            return False
        self.connections.add(connection)
        return True

    def has_room_for_handshake(self, address: str) -> bool:
        """Return True if a TLS handshake may start; a few more than connections, since a page may be wanted."""
        return self._has_room(address, self.config.connections_max + PAGE_READERS_MAX)

    def _has_room(self, address: str, most: int) -> bool:
        """Return True if there may be one more connection; if not, the limit is counted and logged."""
        if len(self.connections) + len(self.handshakes) < most:
            return True
        self.bus.limit_hits["connections_max"] += 1
        self._log_refused(address)
        return False

    def admit_for_page(self, connection: Connection) -> bool:
        """Return True if a connection that is one too many may stay for a page."""
        if len(self._page_readers) >= PAGE_READERS_MAX:
            return False
        self._page_readers.add(connection)
        return True

    def _log_refused(self, address: str) -> None:
        """Log a refused connection, and those that follow within a minute as a number in the next line."""
        self._refused += 1
        now = self.loop.time()
        # A flood of connections must not become a flood of lines.
        if now - self._refused_logged_at < REFUSED_LOG_S:
            return
        more = f", and {self._refused - 1} others since the last such line" if self._refused > 1 else ""
        log.warning("connection from %s refused%s: connections_max = %d", address, more, self.config.connections_max)
        self._refused, self._refused_logged_at = 0, now

    def opened(self, connection: Connection) -> None:
        """Note that a peer is connected and may send messages."""
        log.debug("%s connected", connection.outbox.label)
        if self.journaling is not None:
            self.journaling.record_peer(connection)

    def losing(self, connection: Connection) -> None:
        """Note that a connection is closing; the elements of its peer still exist."""
        self.bus.now = self.now()
        if self.journaling is not None:
            self.journaling.record_gone(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.connections.discard(connection)
        self._page_readers.discard(connection)
        log.debug("%s is gone", connection.outbox.label)

    def page(self, path: str) -> Page | None:
        """Return a page for HTTP clients, None if there is none at the path."""
        return self.metrics.page(path)

    def limits(self) -> dict[str, int]:
        """Return all limits by name."""
        names = [row.name for row in SETTINGS if row.name.endswith(("_max", "_bytes"))]
        return {name: getattr(self.config, name) for name in names}

    # -- time

    def now(self) -> float:
        """Return the time of this turn, and set it for the journal."""
        if self.journaling is not None:
            self.journaling.tick()
        return self.loop.time()

    def _wake_for_routes(self, deadline: float) -> None:
        if self._routes_timer is not None:
            self._routes_timer.cancel()
        self._routes_timer = self.loop.call_at(deadline, self._expire_routes)

    def _expire_routes(self) -> None:
        self._routes_timer = None
        self.bus.routing.expire(self.now())
        deadline = self.bus.routes.next_deadline()
        if deadline is not None:
            self._wake_for_routes(deadline)

    def _wake_for_stale(self, deadline: float) -> None:
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        self._stale_timer = self.loop.call_at(deadline, self._mark_stale)

    def _mark_stale(self) -> None:
        self._stale_timer = None
        self.bus.mark_stale(self.now())
        deadline = self.bus.staleness.next_deadline()
        if deadline is not None:
            self._wake_for_stale(deadline)

    def _refresh_if_fetched(self) -> None:
        if self.metrics.watched:
            self.metrics.refresh()

    def _ping(self) -> None:
        for connection in list(self.connections):
            if isinstance(connection, WebSocketConnection):
                connection.ping()

    # -- reload

    def reload(self, config: Config) -> None:
        """Apply the settings that can change while the daemon runs; log those that cannot."""
        for row in SETTINGS:
            if not row.reload and getattr(config, row.name) != getattr(self.config, row.name):
                log.warning("%s has changed in the configuration; restart the daemon to apply it", row.name)
                config = dataclasses.replace(config, **{row.name: getattr(self.config, row.name)})
        check_settings(config)
        # In a thread: hashing plain passwords takes long. Until it is done the present users stay in force.
        self._aside.run(lambda: Users.load(config.users) if config.users else None, self._on_users)
        if self._tls is not None:
            self._aside.run(lambda: _tls_context(config), self._on_certificate)
        self.config = config
        self.bus.configure(config, config.timeout_s)
        self.turns.turn_s = config.turn_us_max / 1e6
        self.flow.soft_bytes, self.flow.hard_bytes = config.outbox_soft_bytes, config.outbox_hard_bytes
        self.flow.total_bytes = config.outbox_total_bytes
        logging.getLogger("jetbus").setLevel(config.log_level.upper())
        log.info("configuration reloaded")

    def _on_certificate(self, outcome: ssl.SSLContext | JetError | None) -> None:
        """Use a renewed certificate for connections from now on; those that exist keep theirs."""
        if isinstance(outcome, JetError):
            log.error("certificate not reloaded, the present one stays in use: %s", outcome)
        else:
            self._tls = outcome
            if self.radar is not None:
                self.radar.renew_certificate()
            log.info("certificate reloaded")

    def _on_users(self, outcome: Users | JetError | None) -> None:
        if isinstance(outcome, JetError):
            log.error("users not reloaded: %s", outcome)
        else:
            self.flow.gather()
            self.bus.permissions.use(outcome)
            self.flow.gathered()
            log.info("users reloaded")


async def _every(interval_s: Callable[[], float], do: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_s() or 1.0)
        if interval_s():
            do()


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None:
        if config.tls_key is not None:
            raise ConfigError("tls_key is given without tls_cert")
        if config.tls_client_ca is not None:
            raise ConfigError("tls_client_ca is given without tls_cert; clients show certificates over TLS only")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"cannot use certificate {config.tls_cert}: {problem}; give PEM files") from None
    if config.tls_client_ca is not None:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (OSError, ssl.SSLError) as problem:
            raise ConfigError(f"cannot use tls_client_ca {config.tls_client_ca}: {problem}; give a PEM file") from None
        # Clients without a certificate may still connect, and log in by password.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


# -- sockets

SOCKET_MODE = 0o666
_LOOPBACK = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
_ANYWHERE = (("::", socket.AF_INET6), ("0.0.0.0", socket.AF_INET))  # noqa: S104 - asked for by name with *
PORT_TRIES = 20


def _bind(kind: str, address: Address) -> list[socket.socket]:
    """Return the listening sockets for an address. With port 0 all of them have the same free port."""
    hosts = _hosts(kind, address.host)
    for _ in range(PORT_TRIES):
        socks: list[socket.socket] = []
        port = address.port
        problem: OSError | None = None
        for host, family in hosts:
            try:
                sock = _bind_one(host, port, family)
            except OSError as one:
                # One of the two loopback addresses is enough.
                if one.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(hosts) > 1:
                    continue  # a machine without IPv6
                problem = one
                break
            socks.append(sock)
            port = sock.getsockname()[1]
        if problem is None and socks:
            return socks
        for sock in socks:
            sock.close()
        # Port 0: the free port of the first socket was taken on the other address. Another one may be free on both.
        if address.port or problem is None or problem.errno != errno.EADDRINUSE:
            break
    raise _cannot_listen(kind, address, problem)


def _cannot_listen(kind: str, address: Address | str, problem: OSError | None) -> ConfigError:
    in_use = problem is not None and problem.errno == errno.EADDRINUSE
    cause = _cause(problem) if problem else "the machine has no such address"
    return (AddressInUse if in_use else ConfigError)(f"cannot listen on {kind} {address}: {cause}")


def _hosts(kind: str, host: str) -> list[tuple[str, int]]:
    if host == "localhost":
        return list(_LOOPBACK)
    if host == "*":
        return list(_ANYWHERE)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as problem:
        raise ConfigError(
            f"cannot listen on {kind} {host}: {problem.strerror}; give an address of this machine"
        ) from None
    return list(dict.fromkeys((str(where[0]), int(family)) for family, _, _, _, where in found))


def _bind_one(host: str, port: int, family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Else a daemon that restarts would have to wait for connections of its predecessor to expire.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has a socket of its own.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        keep_alive(sock)  # and with it every connection that it accepts
        sock.bind((host, port))
        # Another daemon may be bound to the same port and listen first. The servers of uvloop would not say so.
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _cause(problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        return "it is in use; is another daemon running? Stop that one or choose another address"
    if problem.errno == errno.EACCES:
        return "not permitted; choose a port above 1023 or another path"
    if problem.errno == errno.EADDRNOTAVAIL:
        return "that is no address of this machine; localhost and * always are"
    if problem.errno == errno.ENOENT:
        return "its folder does not exist; make it or choose another path"
    return os.strerror(problem.errno) if problem.errno else str(problem)


def _clear_stale_socket(path: Path) -> None:
    """Remove a socket file without a listener; anything else is left alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"cannot listen on unix {path}: that is not a socket; choose another path")
    except OSError:
        return
    # A file stays behind when a daemon is killed. Only a connection shows whether a program listens on it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
