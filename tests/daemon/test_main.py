"""The process: how it starts, listens, reloads and stops, and how it talks to systemd and to browsers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

import jetbus
from jetbus.daemon.config import Address, AddressInUse
from jetbus.daemon.daemon import _bind
from support.daemon import COMMAND, Daemon
from support.rawws import CLOSE, PING, PONG, TEXT, RawWebSocket, frame, upgrade
from support.wire import Closed, TcpWire, UnixWire, WebSocketWire, Wire

WITHIN_S = 20.0
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
StartDaemon = Callable[..., Daemon]


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that ends by itself."""
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=WITHIN_S, check=False)


def _refused(*options: str) -> str:
    """The one sentence with which a daemon refuses to start."""
    ended = _run(*options)
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("jetd: ")
    return line


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# Listening.


def test_ready_line(start_daemon: StartDaemon) -> None:
    """With port 0 the ready line names the ports that were free, and the transports answer there."""
    daemon = start_daemon()
    address = r"127\.0\.0\.1:\d+"
    assert re.fullmatch(rf"ready tcp={address} ws={address} unix=@\S+ binary={address} binary_unix=@\S+", daemon.ready)
    assert 0 not in (daemon.address("tcp")[1], daemon.address("ws")[1])
    for transport in ("tcp", "ws", "unix"):
        with daemon.connect(transport) as peer:
            assert peer.result("echo", {"x": transport}) == {"x": transport}


@pytest.mark.parametrize("off", ["tcp", "ws", "unix", "binary", "binary_unix"])
def test_a_transport_that_is_off(start_daemon: StartDaemon, off: str) -> None:
    """A transport that is off is not in the ready line, and the others are there."""
    daemon = start_daemon(f"--{off.replace('_', '-')}", "off")
    assert set(daemon.listens) == {"tcp", "ws", "unix", "binary", "binary_unix"} - {off}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_is_both_loopbacks(start_daemon: StartDaemon, host: str) -> None:
    """A daemon on localhost is reached by IPv4 and by IPv6, at the same port."""
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    daemon = start_daemon("--tcp", "localhost:0", "--ws", "localhost:0")
    wires: list[Wire] = [TcpWire((host, daemon.address("tcp")[1])), WebSocketWire((host, daemon.address("ws")[1]))]
    for wire in wires:
        with wire:
            assert wire.result("echo", {}) == {}


def test_ipv6_in_the_ready_line(start_daemon: StartDaemon) -> None:
    """An IPv6 address is shown in brackets."""
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    daemon = start_daemon("--tcp", "[::1]:0")
    assert daemon.listens["tcp"].startswith("[::1]:")
    with daemon.connect("tcp") as peer:
        assert peer.result("echo", {}) == {}


@pytest.mark.parametrize("transport", ["tcp", "ws", "unix"])
def test_an_address_in_use(start_daemon: StartDaemon, transport: str) -> None:
    """A second daemon at the same address says so in one sentence and ends with code 1; the first one goes on."""
    daemon = start_daemon()
    where = daemon.listens[transport]
    options = {"tcp": "off", "ws": "off", "unix": "off", transport: where}
    received = _refused(*(word for name, value in options.items() for word in (f"--{name}", value)))
    assert where in received
    assert "in use" in received
    with daemon.connect(transport) as peer:
        assert peer.result("echo", {}) == {}


def test_daemons_that_start_at_once() -> None:
    """Of two daemons that have bound the same port at the same time, the one that comes second is told so."""
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        (bound,) = _bind("tcp", Address(*rival.getsockname()))
        with bound, pytest.raises(OSError, match="in use"):
            rival.listen()
        rival.listen()
        with pytest.raises(AddressInUse, match=r"cannot listen on tcp 127\.0\.0\.1:.*in use"):
            _bind("tcp", Address(*rival.getsockname()))


@pytest.fixture
def all_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons of this test want all their default addresses, which tests/conftest.py keeps in use."""
    for name in ("JET_BINARY", "JET_BINARY_UNIX"):
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("all_defaults")
def test_a_second_daemon_with_addresses_of_its_own() -> None:
    """A daemon that is given an address goes on without a transport whose default is in use, and says so."""
    options = ["--tcp", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--unix", f"@jetbus-second-{os.getpid()}"]
    second = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert second.stdout is not None
    ready = second.stdout.readline().split()
    second.send_signal(signal.SIGTERM)
    _, log = second.communicate(timeout=WITHIN_S)
    assert second.returncode == 0
    assert [part.partition("=")[0] for part in ready] == ["ready", "tcp", "ws", "unix", "without"]
    assert ready[-1] == "without=binary,binary_unix"
    assert "not listening on binary: localhost:11124 is in use; give --binary another address, or off" in log
    assert "not listening on binary_unix: @/var/run/jet-binary.socket is in use" in log


@pytest.mark.usefixtures("all_defaults")
def test_an_address_that_was_asked_for_must_be_free() -> None:
    """A default that is asked for in so many words is an error if it is in use, and so are defaults alone."""
    own = ["--tcp", "127.0.0.1:0", "--ws", "off", "--unix", "off"]
    assert "cannot listen on binary localhost:11124: it is in use" in _refused(*own, "--binary", "localhost:11124")
    assert "cannot listen on tcp localhost:11122: it is in use" in _refused()
    assert "cannot listen on tcp localhost:11122: it is in use" in _refused("--ws", "off", "--unix", "off")


REFUSALS: dict[str, tuple[list[str], str]] = {
    "a bad setting": (["--tcp", "nonsense"], "HOST:PORT"),
    "a missing file": (["--config", "/nonexistent/jetd.toml"], "/nonexistent/jetd.toml"),
    "a missing users file": (["--users", "/nonexistent/users.json"], "/nonexistent/users.json"),
    "nowhere to listen": (["--tcp", "off", "--ws", "off", "--unix", "off"], "off"),
    "a host that is not known": (["--tcp", "no-such-host.invalid:0", "--ws", "off", "--unix", "off"], "no-such-host"),
    "somebody else's address": (["--tcp", "192.0.2.1:0", "--ws", "off", "--unix", "off"], "192.0.2.1"),
    "a folder that is not there": (["--tcp", "off", "--ws", "off", "--unix", "/nonexistent/jet"], "/nonexistent/jet"),
    "a name that is too long": (["--tcp", "off", "--ws", "off", "--unix", "@" + "x" * 200], "unix"),
    "a certificate that is none": (["--tls-cert", "/nonexistent/cert.pem"], "/nonexistent/cert.pem"),
    "a key without certificate": (["--tls-key", "/nonexistent/key.pem"], "tls_cert"),
}


@pytest.mark.parametrize(("options", "received"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_to_start(options: list[str], received: str) -> None:
    """Whatever keeps a daemon from starting is told in one sentence, with exit code 1 and no traceback."""
    assert received in _refused("--tcp", "127.0.0.1:0", "--ws", "off", "--unix", "off", *options)


def test_help_and_version() -> None:
    """Help and version are printed on stdout and end with code 0."""
    received = _run("--help")
    assert received.returncode == 0
    assert "--outbox-soft-bytes" in received.stdout
    version = _run("--version")
    assert (version.returncode, version.stdout) == (0, f"jetd {jetbus.__version__}\n")


# Socket files.


def test_socket_file(tmp_path: Path) -> None:
    """A socket file is made, serves, and is gone after SIGTERM."""
    path = tmp_path / "jet.socket"
    with Daemon.start("--unix", str(path)) as daemon:
        assert daemon.listens["unix"] == str(path)
        assert stat.S_ISSOCK(path.stat().st_mode)
        with daemon.connect("unix") as peer:
            assert peer.result("echo", {}) == {}
    assert not path.exists()


def test_stale_socket_file(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A socket file that nobody listens on any more is taken over."""
    path = tmp_path / "jet.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    assert path.exists()
    daemon = start_daemon("--unix", str(path))
    with UnixWire(str(path)) as peer:
        assert peer.result("echo", {}) == {}
    daemon.check()


def test_live_socket_file(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A socket file that somebody listens on is left to them."""
    path = tmp_path / "jet.socket"
    daemon = start_daemon("--unix", str(path))
    assert "in use" in _refused("--tcp", "off", "--ws", "off", "--unix", str(path))
    with daemon.connect("unix") as peer:
        assert peer.result("echo", {}) == {}


def test_file_that_is_no_socket(tmp_path: Path) -> None:
    """A file that is no socket is not touched."""
    path = tmp_path / "precious"
    path.write_text("data")
    assert str(path) in _refused("--tcp", "off", "--ws", "off", "--unix", str(path))
    assert path.read_text() == "data"


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stopping(number: signal.Signals) -> None:
    """On SIGTERM or Ctrl-C the daemon lets go of its peers, WebSocket ones with a goodbye, and ends with code 0."""
    with Daemon.start() as daemon:
        browser = RawWebSocket(daemon.address("ws"))
        browser.open()
        peers = [daemon.connect("tcp"), daemon.connect("unix")]
        for peer in peers:
            peer.barrier()
        daemon.process.send_signal(number)
        for peer in peers:
            assert peer.await_closed() == []
            peer.close()
        goodbye = browser.read()
        assert goodbye is not None
        assert goodbye.opcode == CLOSE
        assert int.from_bytes(goodbye.payload[:2], "big") == 1001
        browser.close()
        assert daemon.process.wait(WITHIN_S) == 0


def test_stopping_twice() -> None:
    """A second signal while it stops changes nothing."""
    with Daemon.start() as daemon:
        for _ in range(5):
            daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WITHIN_S) == 0


def test_threads_let_the_bus_go_on(tmp_path: Path) -> None:
    """A thread that reads the past gives way to the bus after half a millisecond, not after CPython's five."""
    report = (
        "import atexit, sys\natexit.register(lambda: print('interval', sys.getswitchinterval(), file=sys.stderr))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(report, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    nowhere = ["--tcp", "127.0.0.1:0", "--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off"]
    process = subprocess.Popen([*COMMAND, *nowhere], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=WITHIN_S)[1] == "interval 0.0005\n"


def test_what_was_told_arrives_before_the_end() -> None:
    """Everything sent before SIGTERM arrives before the connections end."""
    with Daemon.start() as daemon, daemon.connect("tcp") as fetcher, daemon.connect("unix") as owner:
        assert fetcher.result("fetch", {"id": "f"}) is True
        assert owner.result("add", {"path": "a", "value": "x" * 1_000_000}) is True
        daemon.process.send_signal(signal.SIGTERM)
        (event,) = fetcher.await_closed()
        assert len(event) > 1_000_000
        assert daemon.process.wait(WITHIN_S) == 0


# Reloading.


class Reloading:
    """A daemon with a settings file and a users file, and a witness that notices what it does."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jetd.toml"
        self.users = folder / "users.json"
        self.write()
        self.write_users("ann")
        self.daemon = Daemon.start("--config", str(self.file), "--users", str(self.users))
        self.witness = self.daemon.connect()

    def write(self, **values: Any) -> None:
        self.file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))

    def write_users(self, *names: str) -> None:
        self.users.write_text(
            json.dumps({"users": {name: {"password": CHEAP.hash(f"{name}-pw"), "auth": {}} for name in names}})
        )

    def hup(self) -> None:
        self.daemon.process.send_signal(signal.SIGHUP)

    def until(self, seen: Callable[[], Any]) -> None:
        """Ask again and again, each time after the daemon has answered something, until it is so."""
        deadline = time.monotonic() + WITHIN_S
        while not seen():
            assert time.monotonic() < deadline, self.daemon.stderr()
            self.witness.barrier()

    def until_told(self, words: str) -> None:
        """Until the log has these words, `.` being anything."""
        self.until(lambda: re.search(words, self.daemon.stderr(), re.DOTALL))

    def limit(self, name: str) -> Any:
        (state,) = self.witness.result("get", {"path": {"equals": "$jet/limits"}})
        return state["value"][name]

    def may_log_in(self, name: str) -> bool:
        with self.daemon.connect() as peer:
            return "result" in peer.request("authenticate", {"user": name, "password": f"{name}-pw"})

    def close(self) -> None:
        self.witness.close()
        self.daemon.stop()


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Reloading]:
    made = Reloading(tmp_path)
    yield made
    made.close()


def test_removed_admin_is_one_no_longer(tmp_path: Path) -> None:
    """A change of users by a request is in force at once, also for the peers that are logged in."""
    users = tmp_path / "users.json"
    staff = {"fetchGroups": ["staff"], "setGroups": [], "callGroups": []}
    entries = {name: {"password": CHEAP.hash("pw"), "admin": True, "auth": staff} for name in ("ann", "bob")}
    users.write_text(json.dumps({"users": entries}))
    with Daemon.start("--users", str(users)) as daemon, daemon.connect() as ann, daemon.connect() as bob:
        for wire, name in ((ann, "ann"), (bob, "bob")):
            wire.result("authenticate", {"user": name, "password": "pw"})
        ann.result("add", {"path": "hidden", "value": 1, "access": {"fetchGroups": ["staff"]}})
        bob.result("fetch", {"id": "f", "path": {"equals": "hidden"}})
        assert bob.receive()["params"]["event"] == "add"
        ann.result("removeUser", {"user": "bob"})
        assert bob.receive()["params"]["event"] == "remove"
        assert bob.result("get", {"path": {"equals": "hidden"}}) == []
        assert bob.error("removeUser", {"user": "ann"})
        assert bob.error("call", {"path": "$jet/kick", "args": [1]})


def test_socket_file_is_open_to_the_machine(tmp_path: Path) -> None:
    """A socket file is open to every program of the machine, whatever the umask of the daemon."""
    before = os.umask(0o077)
    try:
        with Daemon.start("--unix", str(tmp_path / "jet.socket")) as daemon:
            assert stat.S_IMODE((tmp_path / "jet.socket").stat().st_mode) == 0o666
            with daemon.connect("unix") as wire:
                wire.barrier()
    finally:
        os.umask(before)


def test_users_are_reloaded(reloading: Reloading) -> None:
    """On SIGHUP the users file is read again: new users may log in, those that are gone may not."""
    assert reloading.may_log_in("ann")
    reloading.write_users("bob")
    reloading.hup()
    reloading.until(lambda: reloading.may_log_in("bob"))
    assert not reloading.may_log_in("ann")


def test_rules_are_reloaded(reloading: Reloading) -> None:
    """On SIGHUP other rules by path concern fetches that run: what they hide is removed, what they show is added."""
    with reloading.daemon.connect() as owner, reloading.daemon.connect() as fetcher:
        owner.result("add", {"path": "plant/speed", "value": 1})
        fetcher.result("fetch", {"id": "f", "path": {"startsWith": "plant/"}})
        assert fetcher.receive()["params"]["event"] == "add"
        reloading.users.write_text(json.dumps({"users": {}, "default": "closed"}))
        reloading.hup()
        assert fetcher.receive()["params"] == {"path": "plant/speed", "event": "remove", "value": 1}
        assert owner.error("add", {"path": "more", "value": 1})["data"]["noAccess"] == "more"
        owner.notify("change", {"path": "plant/speed", "value": 2})
        owner.barrier()
        fetcher.barrier()
        reloading.users.write_text(json.dumps({"users": {}, "groups": {"*": {"fetch": ["plant/**"]}}}))
        reloading.hup()
        assert fetcher.receive()["params"] == {"path": "plant/speed", "event": "add", "value": 2}


LOWERED: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "depth_max": ("depth_max", 10, "echo", {"x": [[[[[[[[[[[[1]]]]]]]]]]]]}),
    "path_chars_max": ("path_chars_max", 3, "add", {"path": "long", "value": 1}),
    "elements_max": ("elements_max", 1, "add", {"path": "more", "value": 1}),
    "fetches_max": ("fetches_max", 1, "fetch", {"id": "second", "path": {"equals": "x"}}),
}


@pytest.mark.parametrize(("name", "limit", "method", "params"), LOWERED.values(), ids=LOWERED)
def test_limits_are_reloaded(reloading: Reloading, name: str, limit: Any, method: str, params: Any) -> None:
    """On SIGHUP a limit in the settings file counts for connections that are there already."""
    with reloading.daemon.connect() as peer:
        assert peer.result("add", {"path": "one", "value": 1}) is True
        assert peer.result("fetch", {"id": "first", "path": {"equals": "x"}}) is True
        reloading.write(**{name: limit})
        reloading.hup()
        reloading.until(lambda: reloading.limit(name) == limit)
        peer.send({"id": "over", "method": method, "params": params})
        answer = peer.receive()
        assert answer["error"]["code"] in (-32600, -32603), answer
        assert reloading.daemon.limit_hits(name) == 1


def test_timeout_is_reloaded(reloading: Reloading) -> None:
    """On SIGHUP a new timeout counts for the next request."""
    with reloading.daemon.connect() as owner:
        owner.result("add", {"path": "silent"})
        reloading.write(timeout_s=0.01, path_chars_max=100)
        reloading.hup()
        reloading.until(lambda: reloading.limit("path_chars_max") == 100)
        assert reloading.witness.error("call", {"path": "silent"})["code"] == -32001


BROKEN: dict[str, dict[str, Any]] = {
    "a bad value": {"depth_max": 0},
    "an unknown setting": {"depht_max": 10},
}


@pytest.mark.parametrize("values", BROKEN.values(), ids=BROKEN)
def test_broken_settings_are_not_taken_over(reloading: Reloading, values: dict[str, Any]) -> None:
    """A settings file that cannot be is told in the log, and everything stays as it was."""
    before = reloading.limit("depth_max")
    reloading.write(path_chars_max=99, **values)
    reloading.hup()
    reloading.until_told("dep(th|ht)_max")
    assert reloading.limit("depth_max") == before
    assert reloading.limit("path_chars_max") != 99
    assert reloading.may_log_in("ann")


def test_broken_users_are_not_taken_over(reloading: Reloading) -> None:
    """A users file that cannot be is told in the log, and the users stay as they were."""
    reloading.users.write_text('{"users": {"bob":')
    reloading.hup()
    reloading.until_told(re.escape(str(reloading.users)))
    assert reloading.may_log_in("ann")
    assert not reloading.may_log_in("bob")


def test_what_needs_a_restart(reloading: Reloading) -> None:
    """A setting that cannot change while running is named in the log, and the rest of the file counts."""
    reloading.write(tree="strict", path_chars_max=100)
    reloading.hup()
    reloading.until(lambda: reloading.limit("path_chars_max") == 100)
    reloading.until_told("tree.*restart")
    with reloading.daemon.connect() as peer:
        peer.result("add", {"path": "a", "value": 1})
        assert peer.result("add", {"path": "a/b", "value": 1}) is True


def test_peers_survive_a_reload(reloading: Reloading) -> None:
    """A reload harms nobody: states, fetches and connections stay."""
    with reloading.daemon.connect() as owner, reloading.daemon.connect("ws") as fetcher:
        owner.result("add", {"path": "a", "value": 1})
        fetcher.result("fetch", {"id": "f"})
        assert fetcher.receive()["params"]["value"] == 1
        reloading.write(path_chars_max=100)
        reloading.hup()
        reloading.until(lambda: reloading.limit("path_chars_max") == 100)
        owner.notify("change", {"path": "a", "value": 2})
        assert fetcher.receive()["params"] == {"path": "a", "event": "change", "value": 2}


# systemd.


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    """Systemd is told when the daemon is ready and when it stops, at a socket file or an abstract name."""
    name = f"@jetbus-notify-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(WITHIN_S)
        systemd.bind("\0" + name[1:] if abstract else name)
        with Daemon.start(env={"NOTIFY_SOCKET": name}):
            assert systemd.recv(1000) == b"READY=1"
        assert systemd.recv(1000) == b"STOPPING=1"


def test_without_systemd_nothing_is_missing(tmp_path: Path) -> None:
    """A systemd that does not listen is no reason to stop."""
    with Daemon.start(env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as daemon, daemon.connect() as peer:
        assert peer.result("echo", {}) == {}


# WebSocket.


@pytest.fixture
def browser(daemon: Daemon) -> Iterator[RawWebSocket]:
    """A socket to the WebSocket port of a daemon with default options."""
    raw = RawWebSocket(daemon.address("ws"))
    yield raw
    raw.close()


def _echo(browser: RawWebSocket) -> None:
    """A message over an open WebSocket is answered."""
    browser.send(frame(b'{"id":1,"method":"echo","params":[]}'))
    while (answer := browser.read()) is not None and answer.opcode == PING:
        pass
    assert answer is not None
    assert (answer.opcode, answer.payload) == (TEXT, b'{"id":1,"result":[]}')


@pytest.mark.parametrize("path", ["/", "/api/jet/", "/api/jet", "/any/path?with=query", "/health"])
def test_any_path(browser: RawWebSocket, path: str) -> None:
    """A WebSocket may be opened at any path, at cjet's /api/jet/ too."""
    browser.open(line=f"GET {path} HTTP/1.1")
    _echo(browser)


SUBPROTOCOLS: dict[str, tuple[str | None, bool]] = {
    "jet": ("jet", True),
    "jet among others": ("chat, jet", True),
    "none": (None, False),
    "only others": ("chat", False),
}


@pytest.mark.parametrize(("offered", "echoed"), SUBPROTOCOLS.values(), ids=SUBPROTOCOLS)
def test_subprotocol(browser: RawWebSocket, offered: str | None, echoed: bool) -> None:
    """The subprotocol jet is echoed if it is offered; without it a WebSocket is accepted as well."""
    head = browser.open(Sec_WebSocket_Protocol=offered).lower()
    assert ("sec-websocket-protocol: jet" in head) is echoed
    assert ("sec-websocket-protocol" in head) is echoed
    _echo(browser)


def test_pings_arrive(start_daemon: StartDaemon) -> None:
    """A WebSocket peer is pinged again and again, and lives as long as it answers."""
    daemon = start_daemon("--ws-ping-s", "0.02")
    browser = RawWebSocket(daemon.address("ws"))
    browser.open()
    for _ in range(5):
        ping = browser.read()
        assert ping is not None
        assert ping.opcode == PING
        browser.send(frame(ping.payload, PONG))
    _echo(browser)
    browser.close()


def test_no_answer_to_pings(start_daemon: StartDaemon) -> None:
    """A WebSocket peer that answers no ping is closed, and what it owned is gone."""
    daemon = start_daemon("--ws-ping-s", "0.02")
    browser = RawWebSocket(daemon.address("ws"))
    browser.open()
    browser.send(frame(b'{"method":"add","params":{"path":"a","value":1}}'))
    while (received := browser.read()) is not None:
        assert received.opcode == PING
    browser.close()
    daemon.await_empty()


ORIGINS: dict[str, tuple[str | None, str | None, bool]] = {
    "no browser": (None, None, True),
    "localhost": ("http://localhost:8080", None, True),
    "localhost, encrypted": ("https://localhost", None, True),
    "a loopback address": ("http://127.0.0.1:8080", None, True),
    "an IPv6 loopback address": ("http://[::1]:8080", None, True),
    "a page of the same address": ("http://192.0.2.7", "192.0.2.7:11123", True),
    "a page of this machine by name": (f"http://{socket.gethostname()}", f"{socket.gethostname()}:11123", True),
    "of the list": ("https://good.example", None, True),
    "of the list, otherwise spelt": ("https://Good.example/", None, True),
    "another one": ("https://evil.example", None, False),
    "a longer one": ("https://good.example.evil.example", None, False),
    "one that looks local": ("http://localhost.evil.example", None, False),
    "another scheme": ("http://good.example", None, False),
    "a name that was made to point here": ("http://evil.example:11123", "evil.example:11123", False),
    "a page of another address": ("http://192.0.2.8", "192.0.2.7:11123", False),
    "null": ("null", None, False),
    "empty": ("", None, False),
    "no URL": ("http://[", None, False),
}


@pytest.fixture(scope="module")
def picky() -> Iterator[Daemon]:
    """A daemon that takes web pages of one further origin."""
    with Daemon.start("--ws-origins", "https://good.example") as daemon:
        yield daemon


@pytest.mark.parametrize(("origin", "host", "welcome"), ORIGINS.values(), ids=ORIGINS)
def test_origins(picky: Daemon, origin: str | None, host: str | None, welcome: bool) -> None:
    """Pages of this machine and of the named origins may connect by WebSocket, and who is no page; others may not."""
    browser = RawWebSocket(picky.address("ws"))
    headers = {"Origin": origin} | ({} if host is None else {"Host": host})
    if welcome:
        browser.open(**headers)
        _echo(browser)
    else:
        browser.send(upgrade(**headers))
        answer = browser.until_closed()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"ws_origins of the daemon" in answer
    browser.close()


def test_foreign_origins_by_default(browser: RawWebSocket) -> None:
    """Without any setting a page of a foreign origin cannot connect."""
    browser.send(upgrade(Origin="https://anybody.example"))
    assert browser.until_closed().startswith(b"HTTP/1.1 403 ")


def test_all_origins(start_daemon: StartDaemon) -> None:
    """With * every page may connect."""
    browser = RawWebSocket(start_daemon("--ws-origins", "*").address("ws"))
    browser.open(Origin="https://anybody.example")
    _echo(browser)
    browser.close()


def test_connections_beyond_the_limit_are_closed(start_daemon: StartDaemon) -> None:
    """A connection too many is closed at once, and there is room again when one goes."""
    daemon = start_daemon("--connections-max", "2")
    first, second = daemon.connect(), daemon.connect("unix")
    for peer in (first, second):
        peer.barrier()
    with daemon.connect() as third, pytest.raises((Closed, ConnectionError)):
        third.barrier()
    first.close()
    deadline = time.monotonic() + WITHIN_S
    while True:
        with daemon.connect() as fourth:
            try:
                fourth.barrier()
                break
            except (Closed, ConnectionError):
                assert time.monotonic() < deadline
    second.close()
