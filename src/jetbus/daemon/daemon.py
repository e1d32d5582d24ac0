"""The daemon: one bus, the sockets it listens on and the connections it has."""

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
from typing import Any

from jetbus.bus.bus import Bus
from jetbus.daemon.about import REFRESH_S, About, Page
from jetbus.daemon.config import SETTINGS, TRANSPORTS, Address, AddressInUse, Config, ConfigError
from jetbus.daemon.connection import BinaryConnection, Connection, StreamConnection, WebSocketConnection
from jetbus.daemon.control import Control
from jetbus.daemon.journaling import Journaling
from jetbus.daemon.outbox import Flow
from jetbus.daemon.turns import Turns
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


class Aside:
    """Runs for the bus what would block it, in few threads, so that it cannot take the machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "jetd-aside") -> None:
        self._loop = loop
        self.turns: Turns
        """Set by the daemon."""
        self._threads = ThreadPoolExecutor(ASIDE_THREADS, thread_name_prefix=name)

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def in_thread() -> None:
            outcome: Any
            try:
                outcome = work()
            except JetError as error:
                outcome = error
            except UsersFileError as problem:
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

    def in_turn(self, then: Callable[[], None]) -> None:
        turns = self.turns
        turns.be_fair(begins=True)
        if turns.handling or turns.served is None:
            then()
        else:
            turns.collect(turns.served, [])

    def be_fair(self) -> None:
        self.turns.be_fair()

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
        self._aside = Aside(self.loop)
        self._looking_back: Aside | None = None
        """Reads the past. A disk that hangs holds up its threads, and not those that log users in."""
        self.bus = Bus(
            tree=config.tree,
            separators=config.separator,
            limits=config,
            timeout_s=config.timeout_s,
            users=Users.load(config.users) if config.users else None,
            worker=self._aside,
        )
        self.flow = Flow(self.loop, config.outbox_soft_bytes, config.outbox_hard_bytes, self.bus.limit_hits)
        self.turns = self._aside.turns = Turns(self.loop, self.flow.gather, self.flow.gathered)
        self.journaling: Journaling | None = None
        if config.journal is not None:
            self._keep_journal()
        self.about = About(self)
        self.bus.refresh = self.about.refresh
        self.bus.routes.wake = self._wake_for_routes
        self.connections: set[Connection] = set()
        self.listening: dict[str, str] = {}
        """Where it listens, by kind, as in the ready line."""
        self.left_out: list[str] = []
        """The kinds that it goes on without, since somebody else has their default address."""
        self._servers: list[asyncio.AbstractServer] = []
        self._socket_files: list[Path] = []
        self._routes_timer: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.Task[None]] = []

    def _keep_journal(self) -> None:
        self.journaling = Journaling(self.config, self.loop)
        from jetbus.daemon.history import History  # needs pyarrow; of a lack of that the journal tells better

        self.bus.record = self.journaling.writer
        self.flow.commit = self.journaling.commit_first
        self.bus.past_worker = self._looking_back = Aside(self.loop, "jetd-past")
        self._looking_back.turns = self.turns
        self.bus.past = History(self, self.journaling)

    # -- start and stop

    async def start(self) -> None:
        """Listen on everything the configuration names."""
        if self.journaling is not None:
            self.journaling.start()
        try:
            for kind in TRANSPORTS:
                await self._listen_if_free(kind)
        except BaseException:
            await self.stop()
            raise
        if not self.listening:
            await self.stop()
            raise ConfigError("tcp, ws, unix, binary and binary_unix are all off: the daemon would listen nowhere")
        self.about.refresh()
        Control(self)
        self._timers = [
            self.loop.create_task(_every(lambda: REFRESH_S, self._refresh_if_fetched)),
            self.loop.create_task(_every(lambda: self.config.ws_ping_s, self._ping)),
        ]

    async def _listen_if_free(self, kind: str) -> None:
        """Listen on the address of a transport; a default that nobody asked for may be somebody else's."""
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
            log.warning("%s is left out: %s is in use; give --%s another address, or off", kind, address, flag)

    async def _listen(self, kind: str, address: Address, face: type[Connection]) -> str:
        socks = _bind(kind, address)
        for sock in socks:
            make = partial(face, self, kind)
            try:
                server = await self.loop.create_server(make, sock=sock, backlog=BACKLOG, ssl=self._tls)
            except OSError as problem:
                raise _cannot_listen(kind, address, problem) from None
            self._servers.append(server)
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
            self._socket_files.append(Path(name))
        make = partial(face, self, kind)
        self._servers.append(await self.loop.create_unix_server(make, sock=sock, backlog=BACKLOG))
        return name

    async def stop(self) -> None:
        """Stop listening, tell WebSocket peers, let go of everybody."""
        for timer in self._timers:
            timer.cancel()
        if self._routes_timer is not None:
            self._routes_timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            if isinstance(connection, WebSocketConnection):
                connection.goodbye()
            connection.outbox.flush()
            connection.transport.close()
        deadline = self.loop.time() + STOP_S
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        for file in self._socket_files:
            file.unlink(missing_ok=True)
        self._aside.stop()
        if self._looking_back is not None:
            self._looking_back.stop()
        if self.journaling is not None:
            await self.journaling.stop()

    def config_as_listening(self) -> Config:
        """The configuration with the ports that port 0 turned into, for starting it again at the same addresses."""
        found: dict[str, Any] = {}
        for kind in ("tcp", "ws", "binary"):
            if kind in self.listening:
                asked: Address = getattr(self.config, kind)
                found[kind] = asked._replace(port=int(self.listening[kind].rpartition(":")[2]))
        return dataclasses.replace(self.config, **found)

    # -- connections

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        if len(self.connections) >= self.config.connections_max:
            self.bus.limit_hits["connections_max"] += 1
            log.warning(
                "connection from %s refused: connections_max = %d", connection.address, self.config.connections_max
            )
            return False
        self.connections.add(connection)
        return True

    def opened(self, connection: Connection) -> None:
        """A peer may speak now."""
        log.debug("%s connected", connection.outbox.label)
        if self.journaling is not None:
            self.journaling.came(connection)

    def losing(self, connection: Connection) -> None:
        """A connection is closed; what its peer owned is still there."""
        self.bus.now = self.now()
        if self.journaling is not None:
            self.journaling.went(connection)

    def lost(self, connection: Connection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        log.debug("%s is gone", connection.outbox.label)

    def page(self, path: str) -> Page | None:
        """A page of the HTTP face."""
        return self.about.page(path)

    def limits(self) -> dict[str, int]:
        """All limits by name."""
        names = [row.name for row in SETTINGS if row.name.endswith(("_max", "_bytes"))]
        return {name: getattr(self.config, name) for name in names}

    # -- time

    def now(self) -> float:
        """The time of this turn, also for the journal."""
        if self.journaling is not None:
            self.journaling.tick()
        return self.loop.time()

    def _wake_for_routes(self, deadline: float) -> None:
        if self._routes_timer is not None:
            self._routes_timer.cancel()
        self._routes_timer = self.loop.call_at(deadline, self._expire_routes)

    def _expire_routes(self) -> None:
        self._routes_timer = None
        self.bus.expire(self.now())
        deadline = self.bus.routes.next_deadline()
        if deadline is not None:
            self._wake_for_routes(deadline)

    def _refresh_if_fetched(self) -> None:
        if self.about.watched:
            self.about.refresh()

    def _ping(self) -> None:
        for connection in list(self.connections):
            if isinstance(connection, WebSocketConnection):
                connection.ping()

    # -- reload

    def reload(self, config: Config) -> None:
        """Take over what can change while running; say what cannot."""
        for row in SETTINGS:
            if not row.reload and getattr(config, row.name) != getattr(self.config, row.name):
                log.warning("%s has changed in the configuration; restart the daemon for that", row.name)
                config = dataclasses.replace(config, **{row.name: getattr(self.config, row.name)})
        self._aside.run(lambda: Users.load(config.users) if config.users else None, self._on_users)
        self.config = config
        self.bus.configure(config, config.timeout_s)
        self.flow.soft_bytes, self.flow.hard_bytes = config.outbox_soft_bytes, config.outbox_hard_bytes
        logging.getLogger("jetbus").setLevel(config.log_level.upper())
        log.info("configuration read again")

    def _on_users(self, outcome: Users | JetError | None) -> None:
        if isinstance(outcome, JetError):
            log.error("users stay as they were: %s", outcome)
        else:
            self.bus.users = outcome
            log.info("users read again")


async def _every(interval_s: Callable[[], float], do: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_s() or 1.0)
        if interval_s():
            do()


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None:
        if config.tls_key is not None:
            raise ConfigError("tls_key is given without tls_cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"cannot use certificate {config.tls_cert}: {problem}; give PEM files") from None
    return context


# -- sockets

_LOOPBACK = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
_ANYWHERE = (("::", socket.AF_INET6), ("0.0.0.0", socket.AF_INET))  # noqa: S104 - asked for by name with *
PORT_TRIES = 20


def _bind(kind: str, address: Address) -> list[socket.socket]:
    """The listening sockets for an address. With port 0 all of them get the same free port."""
    hosts = _hosts(kind, address.host)
    for _ in range(PORT_TRIES):
        socks: list[socket.socket] = []
        port = address.port
        problem: OSError | None = None
        for host, family in hosts:
            try:
                sock = _bind_one(host, port, family)
            except OSError as one:
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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        keep_alive(sock)  # and with it every connection that it accepts
        sock.bind((host, port))
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
    """Remove a socket file nobody listens on any more; anything else is left alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"cannot listen on unix {path}: that is not a socket; choose another path")
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
