"""Limits of Radar's server: what one address, one request and one tab may take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

import jetbus
from jetbus.radar.app import RadarSettings
from jetbus.radar.limits import QUESTIONS_PER_ADDRESS, QUESTIONS_WAITING_MAX, Questions, TooManyQuestions
from jetbus.radar.logins import HistorySource, Login
from jetbus.radar.mirror import BusMirror
from jetbus.radar.server import ServerSettings, make_server
from jetbus.radar.tab import PENDING_MAX, REQUESTS_AT_A_TIME, TREE_CHUNK, TabSession
from jetbus.testing import RunningDaemon, running_daemon

WITHIN_S = 60
LONG = "x" * 5_000_000
Serve = Callable[[ServerSettings], int]


@pytest.fixture
def bus() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def start(bus: RunningDaemon) -> Iterator[Serve]:
    """Start servers with limits of their own; each call returns a port."""
    with contextlib.ExitStack() as stack:

        def start(limits: ServerSettings) -> int:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = make_server(RadarSettings(url=bus.url), limits)
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(WITHIN_S)
                assert not thread.is_alive()

            stack.callback(stop)
            return int(listening.getsockname()[1])

        yield start


def ask(port: int, address: str = "api/openapi.json") -> int:
    """Return the status of an answer."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{address}", timeout=WITHIN_S) as answer:
        return int(answer.status)


def open_socket(port: int, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), WITHIN_S)
    sock.sendall(data)
    return sock


def read_all(sock: socket.socket) -> bytes:
    """Return everything up to the end of a connection, also of one that is reset."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


HALVES = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nhost: localhost\r\n",
    "half a body": b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_half_requests(start: Serve, half: bytes) -> None:
    """A request that does not come to its end in time is refused and its connection closed."""
    with open_socket(start(ServerSettings(request_s=0.3)), half) as sock:
        assert read_all(sock).startswith(b"HTTP/1.1 408 ")


def test_half_of_a_second_request(start: Serve) -> None:
    """The time of a request starts anew with each one of a connection."""
    whole = b"GET /api/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with open_socket(start(ServerSettings(request_s=0.3)), whole) as sock:
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        sock.sendall(HALVES["half a head"])
        assert b"HTTP/1.1 408 " in read_all(sock)


def test_connections_of_one_address(start: Serve) -> None:
    """Connections beyond the limit are refused with the reason, tabs count, and one that leaves makes room."""
    port = start(ServerSettings(connections_per_address=3))
    with contextlib.ExitStack() as stack:
        tabs = [stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws")) for _ in range(2)]
        stack.enter_context(open_socket(port))
        with open_socket(port) as refused:
            answer = read_all(refused)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"127.0.0.1 has 3 connections" in answer
        tabs[0].close()
        await_status(port, 200)


def await_status(port: int, wanted: int) -> None:
    """Ask until an answer has a status: that a connection has left is seen a moment later."""
    while True:
        with contextlib.suppress(urllib.error.HTTPError, ConnectionError, urllib.error.URLError):
            if ask(port) == wanted:
                return


def test_a_reader_that_is_stuck(bus: RunningDaemon, start: Serve) -> None:
    """A tab that reads nothing is cut off, and its connection counts no more."""
    port = start(ServerSettings(connections_per_address=1, stuck_s=0.3))
    with jetbus.Peer(bus.url) as owner:
        for number in range(4):
            owner.add_state(f"long/{number}", LONG)
        options: dict[str, Any] = {"max_size": None, "max_queue": 1, "compression": None, "close_timeout": 0.1}
        with connect(f"ws://127.0.0.1:{port}/ws", **options) as tab:
            tab.send(json.dumps({"method": "watch", "params": {"paths": [f"long/{number}" for number in range(4)]}}))
            await_status(port, 200)


def test_tabs_share_what_they_know(bus: RunningDaemon, start: Serve) -> None:
    """Twenty tabs of one login are one peer of the bus, and that leaves with the last of them."""
    port = start(ServerSettings())
    with jetbus.Peer(bus.url) as owner:
        state = owner.add_state("a", 1)
        radars: list[str] = []
        gone = threading.Event()

        def note(event: jetbus.Event) -> None:
            if event.kind == "remove":
                gone.set()
            elif event.value["name"] == "radar" and event.path not in radars:
                radars.append(event.path)

        peers = owner.fetch("$jet/peers/*", note)
        with contextlib.ExitStack() as stack:
            tabs = [stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws")) for _ in range(20)]
            for tab in tabs:
                read_until(tab, lambda message: ["a", 2] in message.get("tree", {}).get("add", []))
            for tab in tabs:
                tab.send(json.dumps({"method": "watch", "params": {"paths": ["a"]}}))
            state.change(2)
            for tab in tabs:
                read_until(tab, lambda message: message.get("values", {}).get("a", [0])[0] == 2)
            assert not gone.is_set()
        assert gone.wait(WITHIN_S)
        peers.close()
        assert len(radars) == 1


def read_until(tab: ClientConnection, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the next message of a kind."""
    while True:
        message: dict[str, Any] = json.loads(tab.recv(timeout=WITHIN_S))
        if is_wanted(message):
            return message


def test_a_tree_that_nobody_reads(bus: RunningDaemon) -> None:
    """The news of a tab that does not read are bounded: when it reads again, its tree is listed anew."""

    async def run() -> None:
        reads, messages = asyncio.Event(), asyncio.Queue[dict[str, Any]]()

        async def send(text: str) -> None:
            await reads.wait()
            messages.put_nowait(json.loads(text))

        session = TabSession(Login(None, lambda: BusMirror(bus.url, {}), HistorySource(refuse_to_open)), send)
        running = asyncio.create_task(session.run())
        async with jetbus.PeerAsync(bus.url) as owner:
            await asyncio.gather(*(owner.add_state(f"new/{number}", 0) for number in range(PENDING_MAX + 1)))
            reads.set()
            known: set[str] = set()
            while f"new/{PENDING_MAX}" not in known:
                tree = (await messages.get()).get("tree", {"add": [], "reset": False})
                assert len(tree["add"]) <= TREE_CHUNK
                known = (set() if tree["reset"] else known) | {path for path, _flags in tree["add"]}
            assert len([path for path in known if path.startswith("new/")]) == PENDING_MAX + 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))


def refuse_to_open() -> Any:
    raise OSError("there is no journal")


def test_requests_of_one_tab(bus: RunningDaemon) -> None:
    """A tab that sends many requests at once has some of them carried out at a time, and all in the end."""

    async def run() -> None:
        at_work, let_go, connected, taken = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event(), 0
        answers = asyncio.Queue[int]()
        count = 3 * REQUESTS_AT_A_TIME

        async def work() -> None:
            at_work.release()
            await let_go.wait()

        async def read() -> str:
            nonlocal taken
            await connected.wait()
            if taken == count:
                await asyncio.Event().wait()
            taken += 1
            return json.dumps({"id": taken, "method": "call", "params": {"path": "work", "timeout_s": WITHIN_S}})

        async def send(text: str) -> None:
            message = json.loads(text)
            if message.get("status", {}).get("connected"):
                connected.set()
            if "id" in message:
                assert "error" not in message
                answers.put_nowait(message["id"])

        async with jetbus.PeerAsync(bus.url) as owner:
            await owner.add_method("work", work)
            session = TabSession(Login(None, lambda: BusMirror(bus.url, {}), HistorySource(refuse_to_open)), send)
            tasks = [asyncio.create_task(session.run()), asyncio.create_task(session.serve(read))]
            for _ in range(REQUESTS_AT_A_TIME):
                await at_work.acquire()
            assert taken == REQUESTS_AT_A_TIME
            let_go.set()
            assert {await answers.get() for _ in range(count)} == set(range(1, count + 1))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))


def test_turns_of_questions() -> None:
    """One address has few questions at work and a bounded number waiting; another one is served in between."""

    async def run() -> None:
        questions = Questions()
        let_go = asyncio.Event()
        at_work: list[str] = []

        async def ask(address: str) -> None:
            async with questions.turn(address):
                at_work.append(address)
                await let_go.wait()

        greedy = [asyncio.create_task(ask("10.0.0.1")) for _ in range(QUESTIONS_WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestions, match=r"10\.0\.0\.1 has 100 questions"):
            await ask("10.0.0.1")
        other = asyncio.create_task(ask("10.0.0.2"))
        while "10.0.0.2" not in at_work:
            await asyncio.sleep(0)
        assert at_work.count("10.0.0.1") == QUESTIONS_PER_ADDRESS
        let_go.set()
        await asyncio.gather(*greedy, other)
        assert len(at_work) == QUESTIONS_WAITING_MAX + 1

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))
