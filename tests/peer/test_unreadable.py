"""Values that a peer cannot read, from daemons that let them pass: each is told with its reason, the rest goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.errors import InvalidValue
from jetbus.peer.elements import OwnedMethod, OwnedState
from jetbus.peer.events import Event
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.subscription import Subscription
from jetbus.rules import rule
from support.jet import Jet

NUMBERS = ["1e309", "-1e400", "9" * 5000]


class Waiter:
    """Takes a response."""

    def __init__(self) -> None:
        self.outcome: Any = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any, /) -> None:
        self.outcome, self.is_done = result, True

    def set_exception(self, exception: BaseException, /) -> None:
        self.outcome, self.is_done = exception, True


def connected() -> PeerSession:
    session = PeerSession(spawn=lambda _work, _done: None)
    session.daemon = {"name": "jetbus"}
    session.on_connected()
    session.take_out()
    return session


def fetching(session: PeerSession, text: str | None = None, **keywords: Any) -> Subscription:
    """A fetch that has been told everything that is there."""
    made = Subscription("f1", rule(text, **keywords), policy="every")
    session.fetch(made)
    for message in map(json.loads, session.take_out()):
        session.receive([json.dumps({"id": message["id"], "result": True}).encode()])
    return made


def short(events: list[Event]) -> list[tuple[str, str, Any, bool]]:
    return [(event.kind, event.path, event.value, event.problem is not None) for event in events]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("form", ["%s", "[0,%s]", '{"a":%s}'])
def test_event(number: str, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """An event whose value cannot be read has no value but the reason; the others of its message are told."""
    session = connected()
    fetch = fetching(session)
    received = '{"method":"f1","params":{"path":"%s","event":"%s","value":%s}}'
    bad = form % number
    messages = [received % ("a", "add", "1"), received % ("b", "add", bad), received % ("c", "add", "3")]
    session.receive([f"[{','.join(messages)}]".encode()])
    session.receive(
        [message.encode() for message in (received % ("b", "change", bad), received % ("b", "change", "2"))]
    )
    session.receive([(received % ("b", "remove", bad)).encode()])
    events = fetch.take()
    assert short(events) == [
        ("add", "a", 1, False),
        ("add", "b", None, True),
        ("add", "c", 3, False),
        ("change", "b", None, True),
        ("change", "b", 2, False),
        ("remove", "b", None, True),
    ]
    assert isinstance(events[1].problem, InvalidValue)
    assert events[1].problem.path == "b"
    assert "b: it has a number that cannot be read" in str(events[1].problem)
    assert "b: it has a number that cannot be read" in caplog.text
    assert fetch.known == {"a": 1, "c": 3}


@pytest.mark.parametrize("number", NUMBERS)
def test_changes_in_one_message(number: str) -> None:
    """Of the changes of one turn all others are told, in their order."""
    session = connected()
    fetch = fetching(session)
    session.receive([f'{{"method":"f1","params":["a",1,false,"b",{number},true,"c",3,false]}}'.encode()])
    events = fetch.take()
    assert [(event.path, event.value, event.fetch_only) for event in events] == [
        ("a", 1, False),
        ("b", None, True),
        ("c", 3, False),
    ]
    assert [event.problem is not None for event in events] == [False, True, False]


def test_sorted_fetch() -> None:
    """A sorted list has an entry for it, with the reason."""
    session = connected()
    fetch = fetching(session, sort_by="path", last=3)
    changes = '[{"path":"a","value":1,"index":1},{"path":"b","value":1e309,"index":2}]'
    session.receive([f'{{"method":"f1","params":{{"n":2,"changes":{changes}}}}}'.encode()])
    (items,) = fetch.take()[-1:]
    assert short(items) == [("change", "a", 1, False), ("change", "b", None, True)]


@pytest.mark.parametrize("number", NUMBERS)
def test_entries_of_a_get(number: str) -> None:
    """The answer to a get is there, with the reason in place of the value that cannot be read."""
    session = connected()
    waiter = Waiter()
    session.request("get", {}, waiter)
    entries = f'[{{"path":"a","value":1}},{{"path":"b","value":{{"x":{number}}}}},{{"path":"m"}}]'
    (request,) = map(json.loads, session.take_out())
    session.receive([f'{{"id":{request["id"]},"result":{entries}}}'.encode()])
    assert waiter.outcome[0] == {"path": "a", "value": 1}
    assert waiter.outcome[2] == {"path": "m"}
    problem = waiter.outcome[1]["value"]
    assert isinstance(problem, InvalidValue)
    assert str(problem).startswith("b: it has a number that cannot be read")


def test_answer_of_an_owner() -> None:
    """An answer that cannot be read is an error that names the path, and not silence; so is one to something else."""
    session = connected()
    waiters = [Waiter(), Waiter(), Waiter()]
    session.request("call", {}, waiters[0], None, 5.0, "plant/sum")
    session.request("info", {}, waiters[1])
    session.request("info", {}, waiters[2])
    numbers = [json.loads(message)["id"] for message in session.take_out()]
    results = zip(numbers, ("[1e309]", "1e309", "5"), strict=True)
    answers = ",".join(f'{{"id":{number},"result":{result}}}' for number, result in results)
    session.receive([f"[{answers}]".encode()])
    assert str(waiters[0].outcome).startswith("plant/sum: it has a number")
    assert isinstance(waiters[1].outcome, InvalidValue)
    assert waiters[2].outcome == 5


@pytest.mark.parametrize("number", NUMBERS)
def test_owner_is_not_given_infinity(number: str) -> None:
    """Values and arguments that cannot be read are refused before they reach an owner."""
    seen: list[Any] = []
    session = connected()
    session.add(OwnedState("s", 1, seen.append, None, None, None), Waiter())
    session.add(OwnedMethod("m", seen.append, None, None), Waiter())
    session.take_out()
    session.receive([f'{{"id":"r1","method":"s","params":{{"value":{number}}}}}'.encode()])
    session.receive([f'{{"id":"r2","method":"m","params":[{number}]}}'.encode()])
    answers = [json.loads(message) for message in session.take_out()]
    assert [answer["error"]["code"] for answer in answers] == [-32602, -32602]
    assert "cannot be read" in answers[0]["error"]["data"]["invalidArgument"]["message"]
    assert seen == []


# -- a daemon that lets them pass

ENTRIES = '[{"path":"a","value":1},{"path":"b","value":1e309},{"path":"c","value":3}]'


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a daemon with three states, of which one cannot be read."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            message = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
            for request in message if isinstance(message, list) else [message]:
                results = {"info": '{"name":"cjet","version":"1"}', "get": ENTRIES}
                text = f'{{"id":{request.get("id")},"result":{results.get(request["method"], "true")}}}'.encode()
                if "id" in request:
                    writer.write(len(text).to_bytes(4) + text)
    writer.close()


@pytest.fixture
def url() -> Iterator[str]:
    """A daemon in a thread of its own."""
    started, stop = threading.Event(), asyncio.Event()
    where: list[Any] = []

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        where.extend([asyncio.get_running_loop(), server.sockets[0].getsockname()[1]])
        started.set()
        async with server:
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(30)
    yield f"jet://127.0.0.1:{where[1]}"
    where[0].call_soon_threadsafe(stop.set)
    thread.join()


def test_get(url: str) -> None:
    """A get returns, with every value that can be read."""
    with jetbus.Peer(url) as peer:
        found = peer.get_all("**")
    assert (found["a"], found["c"]) == (1, 3)
    assert isinstance(found["b"], InvalidValue)


def test_jet_get(url: str, tmp_path: Path) -> None:
    """The command shows what can be read, says what cannot and why, and fails."""
    code, out, err = Jet(url, tmp_path)("get", "**")
    assert code == 1
    assert [json.loads(line)["path"] for line in out.splitlines()] == ["a", "c"]
    assert err.startswith("jet: b: it has a number that cannot be read (number out of range); its owner should")
