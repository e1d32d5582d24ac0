"""Bytes that arrive in pieces, pings between requests, and messages of several peers that arrive together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.daemon import Daemon
from support.rawws import PING, PONG, TEXT, Frame, RawWebSocket, frame, upgrade
from support.wire import Wire

StartDaemon = Callable[..., Daemon]
ECHO = b'{"id":1,"method":"echo","params":[]}'
ECHOED = b'{"id":1,"result":[]}'


@pytest.fixture(params=["uvloop", "asyncio"])
def daemon_on_each_loop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose event loop is that of uvloop, then one with that of asyncio."""
    env = None
    if request.param == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError", encoding="utf-8")
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with Daemon.start(env=env) as started:
        yield started


@pytest.fixture
def browser(daemon: Daemon) -> Iterator[RawWebSocket]:
    """A socket to the WebSocket port of a daemon with default options."""
    raw = RawWebSocket(daemon.address("ws"))
    yield raw
    raw.close()


def _next(browser: RawWebSocket) -> Frame:
    """The next frame that is no ping of the daemon."""
    while (found := browser.read()) is not None and found.opcode == PING:
        pass
    assert found is not None
    return found


def _send_apart(browser: RawWebSocket, pieces: list[bytes], witness: Wire) -> None:
    """Send pieces so that the daemon has read each of them before the next one is sent."""
    for piece in pieces:
        browser.sock.sendall(piece)
        witness.barrier()


def _read_head(browser: RawWebSocket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = browser.sock.recv(1)
        assert byte, head
        head += byte
    return head


# Handshakes.


def test_a_handshake_of_single_bytes(browser: RawWebSocket, daemon: Daemon) -> None:
    """A WebSocket handshake that arrives byte by byte is answered like one that arrives whole."""
    with daemon.connect() as witness:
        _send_apart(browser, [bytes([byte]) for byte in upgrade()], witness)
    assert _read_head(browser).startswith(b"HTTP/1.1 101 ")
    browser.send(frame(ECHO))
    assert _next(browser) == Frame(TEXT, ECHOED)


def test_a_handshake_cut_anywhere(daemon: Daemon) -> None:
    """A WebSocket handshake may be cut in two at any place, also behind its end, within the first message."""
    whole = upgrade() + frame(ECHO)
    with daemon.connect() as witness:
        for cut in range(1, len(whole)):
            browser = RawWebSocket(daemon.address("ws"))
            _send_apart(browser, [whole[:cut], whole[cut:]], witness)
            assert _read_head(browser).startswith(b"HTTP/1.1 101 "), cut
            assert _next(browser) == Frame(TEXT, ECHOED), cut
            browser.close()


def test_what_is_no_request_is_refused_with_its_first_byte(browser: RawWebSocket) -> None:
    """Bytes that begin no HTTP request are answered 400 at once, without waiting for the end of a line."""
    browser.send(b"\x00")
    assert browser.until_closed().startswith(b"HTTP/1.1 400 ")


# Pings.


def test_a_ping_is_answered_before_the_request_ahead_of_it(browser: RawWebSocket) -> None:
    """A ping that arrives together with a request is answered first: it asks for a sign of life, not for a turn."""
    browser.open()
    browser.send(frame(ECHO) + frame(b"alive?", PING))
    assert _next(browser) == Frame(PONG, b"alive?")
    assert _next(browser) == Frame(TEXT, ECHOED)


def test_a_ping_behind_the_handshake(browser: RawWebSocket) -> None:
    """A ping in the same segment as the handshake is answered after the handshake."""
    browser.send(upgrade() + frame(b"1", PING) + frame(ECHO))
    assert _read_head(browser).startswith(b"HTTP/1.1 101 ")
    assert _next(browser) == Frame(PONG, b"1")
    assert _next(browser) == Frame(TEXT, ECHOED)


def test_a_ping_is_answered_while_a_login_is_checked(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A ping behind a login that is slow to be refused does not wait for it; the next request does."""
    users = tmp_path / "users.json"
    users.write_text('{"users":{"alice":{"password":"secret","auth":{}}}}', encoding="utf-8")
    browser = RawWebSocket(start_daemon("--users", str(users)).address("ws"))
    browser.open()
    login = b'{"id":7,"method":"authenticate","params":{"user":"alice","password":"wrong"}}'
    browser.send(frame(login) + frame(ECHO))
    browser.send(frame(b"alive?", PING))
    assert _next(browser) == Frame(PONG, b"alive?")
    assert json.loads(_next(browser).payload)["id"] == 7
    assert _next(browser) == Frame(TEXT, ECHOED)
    browser.close()


def test_much_waits_for_a_slow_service(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Megabytes behind a slow login are answered in order once it is refused, on every transport."""
    users = tmp_path / "users.json"
    users.write_text('{"users":{"alice":{"password":"secret","auth":{}}}}', encoding="utf-8")
    daemon = start_daemon("--users", str(users))
    for transport in ("tcp", "unix", "ws"):
        with daemon.connect(transport) as wire:
            wire.send({"id": "login", "method": "authenticate", "params": {"user": "alice", "password": "wrong"}})
            for number in range(40):
                wire.send({"id": number, "method": "echo", "params": [number, "x" * 50_000]})
            assert "error" in wire.response("login")
            assert [wire.receive()["id"] for _ in range(40)] == list(range(40))


# Messages of several peers.


def _at_rest(daemon: Daemon, *wires: Wire) -> None:
    """Stop the daemon while it waits for messages, so that those sent meanwhile arrive together."""
    for wire in wires:
        wire.barrier()
    _await_state(daemon, "S")  # asleep: it has looked at all sockets and found nothing
    os.kill(daemon.process.pid, signal.SIGSTOP)
    _await_state(daemon, "T")


def _await_state(daemon: Daemon, state: str) -> None:
    deadline = time.monotonic() + 10
    while f"\nState:\t{state}" not in Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline


def _let_pass(wire: Wire, seconds: float) -> None:
    """Wait until so much time has passed for the daemon: that a request which nobody answers times out."""
    wire.result("add", {"path": "waits"})
    assert wire.error("call", {"path": "waits", "timeout": seconds})["code"] == -32001
    wire.result("remove", {"path": "waits"})
    wire.inbox.clear()


def _received(client: Wire, count: int) -> list[str]:
    """Return the events of a fetch of one state in short: event and value, or the id of a response."""
    messages = [client.receive() for _ in range(count)]
    return [
        f"response {message['id']}" if "id" in message else f"{message['params']['event']} {message['params']['value']}"
        for message in messages
    ]


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
def test_a_fetch_is_answered_between_adds_and_changes(start_daemon: StartDaemon, transport: str) -> None:
    """A program that adds by one connection and fetches by another sees its adds and each later change."""
    daemon = start_daemon()
    fetch = {"id": 1, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 1}}
    with daemon.connect(transport) as owner, daemon.connect(transport) as client:
        client.result("fetch", {"id": 2, "path": {"equals": "none"}})
        _let_pass(client, 0.05)
        _at_rest(daemon, owner, client)
        client.notify("unfetch", {"id": 2})
        owner.notify("add", {"path": "a", "value": 6})
        client.send(fetch)
        for value in range(3):
            owner.notify("change", {"path": "a", "value": value})
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert _received(client, 5) == ["add 6", "response 1", "change 0", "change 1", "change 2"]


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
def test_a_fetch_that_comes_first_is_first(start_daemon: StartDaemon, transport: str) -> None:
    """Changes that arrive with a fetch, but after it, are all told."""
    daemon = start_daemon()
    with daemon.connect(transport) as owner, daemon.connect(transport) as client:
        owner.result("add", {"path": "a", "value": 6})
        _at_rest(daemon, client, owner)
        client.send({"id": 1, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 1}})
        client.send({"id": 2, "method": "echo", "params": {}})
        for value in range(3):
            owner.notify("change", {"path": "a", "value": value})
        os.kill(daemon.process.pid, signal.SIGCONT)
        received = _received(client, 6)
        assert [one for one in received if one != "response 2"] == [
            "add 6",
            "response 1",
            "change 0",
            "change 1",
            "change 2",
        ]


def test_a_fetch_after_a_long_one_is_first(start_daemon: StartDaemon) -> None:
    """A client that has just fetched thousands of states is still told each change that follows its next fetch."""
    daemon = start_daemon()
    fetch = {"id": 1, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 1, "path": {"contains": "many/"}}}
    with daemon.connect() as crowd, daemon.connect() as owner, daemon.connect() as client:
        for number in range(3000):
            crowd.notify("add", {"path": f"many/{number}", "value": number})
        crowd.barrier()
        owner.result("add", {"path": "a", "value": 6})
        client.send(fetch)
        while "id" not in client.receive():
            pass
        _let_pass(owner, 0.05)
        _at_rest(daemon, owner)
        client.notify("unfetch", {"id": 1})
        client.send({"id": 2, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 2, "path": {"equals": "a"}}})
        for value in range(3):
            owner.notify("change", {"path": "a", "value": value})
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert _received(client, 5) == ["add 6", "response 2", "change 0", "change 1", "change 2"]


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
def test_a_change_that_comes_before_a_fetch_is_in_its_answer(start_daemon: StartDaemon, transport: str) -> None:
    """A program that changes by one connection and then fetches by another is told the new value first."""
    daemon = start_daemon()
    with daemon.connect(transport) as owner, daemon.connect(transport) as client:
        owner.result("add", {"path": "a", "value": 6})
        _let_pass(client, 0.05)
        _at_rest(daemon, client, owner)
        owner.notify("change", {"path": "a", "value": 7})
        client.send({"id": 1, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 1}})
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert _received(client, 2) == ["add 7", "response 1"]


TRIES = 400
LOST_MAX = TRIES // 100


def _fetch_numbered(client: Wire, number: int, path: str) -> None:
    """Fetch a path; peers that send ``jsonrpc`` and a number as fetch id are told the events before the response."""
    params = {"id": number, "path": {"equals": path}}
    client.send({"id": number, "jsonrpc": "2.0", "method": "fetch", "params": params})


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_an_add_by_one_connection_and_a_fetch_by_another(daemon_on_each_loop: Daemon, transport: str) -> None:
    """Of 400 states, each added by one connection and fetched by another at once, at most four are told late."""
    daemon = daemon_on_each_loop
    with daemon.connect(transport) as owner, daemon.connect(transport) as client:
        late = 0
        for number in range(TRIES):
            owner.notify("add", {"path": f"p{number}", "value": number})
            _fetch_numbered(client, number, f"p{number}")
            late += "id" in client.receive()
            client.barrier()
            client.inbox.clear()
            assert client.result("unfetch", {"id": number}) is True
            assert owner.result("remove", {"path": f"p{number}"}) is True
    assert late <= LOST_MAX


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_fetch_by_one_connection_and_changes_by_another(daemon_on_each_loop: Daemon, transport: str) -> None:
    """Of 400 fetches, each followed by ten changes by another connection, at most four miss one of these."""
    daemon = daemon_on_each_loop
    with daemon.connect(transport) as owner, daemon.connect(transport) as client:
        owner.result("add", {"path": "x", "value": -1})
        incomplete = 0
        for number in range(TRIES):
            _fetch_numbered(client, number, "x")
            values = range(10 * number, 10 * number + 10)
            for value in values:
                owner.notify("change", {"path": "x", "value": value})
            owner.barrier()
            told = client.receive_all()
            changes = [one["params"]["value"] for one in told if "id" not in one and one["params"]["event"] == "change"]
            incomplete += changes != list(values)
            assert client.result("unfetch", {"id": number}) is True
    assert incomplete <= LOST_MAX


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
def test_nothing_is_lost_behind_a_fetch(daemon: Daemon, transport: str) -> None:
    """Messages behind a fetch are handled even if the peer closes at once."""
    with daemon.connect(transport) as owner:
        owner.result("add", {"path": "a", "value": 1})
        for number in range(20):
            peer = daemon.connect(transport)
            peer.notify("fetch", {"id": "f"})
            peer.notify("set", {"path": "a", "value": number})
            peer.close()
            assert owner.receive() == {"method": "a", "params": {"value": number}}


# Elements that come and go.

MOMENTS = 300
FETCHES: dict[str, dict[str, object] | list[str]] = {
    "classic": {"id": "f"},
    "together": {"id": "f", "together": True},
    "2012": ["f", "."],
}


@pytest.mark.parametrize("params", FETCHES.values(), ids=FETCHES)
def test_what_is_added_and_removed_at_once_is_told(
    start_daemon: StartDaemon, params: dict[str, object] | list[str]
) -> None:
    """An element that is added and removed at once is told as an add and a remove, to a fetcher that lags, too."""
    daemon = start_daemon("--outbox-soft-bytes", "1000")
    with daemon.connect() as owner, daemon.connect(receive_buffer_bytes=4096) as slow:
        slow.notify("fetch", params)
        slow.barrier()
        owner.notify("add", {"path": "filling", "value": "x" * 2_000_000})
        for _ in range(MOMENTS):
            owner.notify("add", {"path": "/notifications/1", "value": 1})
            owner.notify("change", {"path": "/notifications/1", "value": 2})
            owner.notify("remove", {"path": "/notifications/1"})
        owner.barrier()
        kinds = [
            message["params"]["event"]
            for message in slow.receive_all()
            if isinstance(message["params"], dict) and message["params"]["path"] == "/notifications/1"
        ]
    assert [kind for kind in kinds if kind != "change"] == ["add", "remove"] * MOMENTS


def test_what_a_closed_peer_owned_is_not_fetched(daemon: Daemon) -> None:
    """A peer that connects and fetches after another one has closed sees nothing of what that one owned."""
    for _ in range(20):
        with daemon.connect("unix") as owner:
            owner.result("add", {"path": "a", "value": 1})
            owner.send(None)  # its error finds nobody
        with daemon.connect("unix") as client:
            client.send({"id": 1, "jsonrpc": "2.0", "method": "fetch", "params": {"id": 1}})
            assert client.receive() == {"id": 1, "result": True}
            client.notify("unfetch", {"id": 1})


def test_long_messages_wait_for_short_ones(start_daemon: StartDaemon) -> None:
    """A short message does not wait for the long ones that many other peers have completed just before it."""
    daemon = start_daemon()
    with daemon.connect() as watcher, daemon.connect() as late, contextlib.ExitStack() as stack:
        early = [stack.enter_context(daemon.connect()) for _ in range(5)]
        for number, peer in enumerate([*early, late]):
            peer.result("add", {"path": f"p{number}", "value": ""})
        watcher.result("fetch", {"id": 1, "path": {"startsWith": "p"}})
        _let_pass(watcher, 0.05)
        params = [{"path": f"p{number}", "value": "x" * 100_000} for number in range(len(early))]
        texts = [json.dumps({"method": "change", "params": one}).encode() for one in params]
        for peer, text in zip(early, texts, strict=True):
            peer.send_raw(len(text).to_bytes(4, "big") + text[:50_000])
        while daemon.metrics()["jetbus_inbound_bytes"] < 50_000 * len(early):
            late.barrier()
        _at_rest(daemon, late)
        for peer, text in zip(early, texts, strict=True):
            peer.send_raw(text[50_000:])
        late.notify("change", {"path": "p5", "value": "short"})
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert watcher.receive()["params"]["value"] == "short"
