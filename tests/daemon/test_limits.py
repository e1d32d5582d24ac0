"""Every limit that is crossed gives a clear error or a close, harms nobody else, and is counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.strict import Witness
from support.wire import Closed, Wire

StartDaemon = Callable[..., Daemon]
TRANSPORTS = ["tcp", "unix", "ws"]


@pytest.fixture
def limited(start_daemon: StartDaemon) -> Iterator[Callable[..., tuple[Daemon, Witness]]]:
    """A daemon with this limit and a witness on it, which is checked after the test."""
    witnesses = []

    def start(*options: str) -> tuple[Daemon, Witness]:
        daemon = start_daemon(*options)
        witnesses.append(Witness(daemon))
        return daemon, witnesses[-1]

    yield start
    try:
        for witness in witnesses:
            witness.check()
    finally:
        for witness in witnesses:
            witness.close()


Limited = Callable[..., tuple[Daemon, Witness]]


def echo_of(size_bytes: int) -> str:
    """An echo request of exactly this size."""
    empty = '{"id":1,"method":"echo","params":[""]}'
    return empty.replace('""', f'"{"x" * (size_bytes - len(empty))}"')


def refused(wire: Wire, text: str) -> dict[str, Any] | None:
    """Send what must be refused; the error, or None if the daemon closed."""
    wire.send_text(text)
    try:
        answer = wire.receive()
    except Closed:
        return None
    assert "error" in answer, answer
    error = answer["error"]
    assert isinstance(error["code"], int)
    assert error["message"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_message_bytes_max(limited: Limited, transport: str) -> None:
    """A message of the greatest size passes, one byte more closes the connection."""
    daemon, witness = limited("--message-bytes-max", "2000")
    with daemon.connect(transport) as wire:
        wire.send_text(echo_of(2000))
        assert "result" in wire.receive()
        wire.send_text(echo_of(2001))
        for text in wire.await_closed():
            assert "error" in json.loads(text)
    witness.check()
    assert daemon.limit_hits("message_bytes_max") == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_depth_max(limited: Limited, transport: str) -> None:
    """A message that is nested too deep is refused; brackets in strings and many in a row are no depth."""
    daemon, witness = limited("--depth-max", "20")
    with daemon.connect(transport) as wire:
        assert refused(wire, '{"id":1,"method":"echo","params":{"x":' + "[" * 30 + "]" * 30 + "}}")
        assert wire.result("echo", {"x": "[" * 100 + '{"' * 100}) == {"x": "[" * 100 + '{"' * 100}
        assert wire.result("echo", {"x": [[]] * 100}) == {"x": [[]] * 100}
        assert wire.result("echo", {"x": [[[[[]]]]]}) == {"x": [[[[[]]]]]}
    witness.check()
    assert daemon.limit_hits("depth_max") == 1


def test_depth_max_of_a_notification(limited: Limited) -> None:
    """A notification that is nested too deep changes nothing."""
    daemon, _ = limited("--depth-max", "20")
    with daemon.connect() as wire:
        wire.send_text('{"method":"add","params":{"path":"deep","value":' + "[" * 30 + "]" * 30 + "}}")
        wire.barrier()
        assert wire.result("get", {"path": {"equals": "deep"}}) == []
    assert daemon.limit_hits("depth_max") == 1


def test_batch_max(limited: Limited) -> None:
    """A batch of the greatest size passes, one member more is refused as a whole."""
    daemon, witness = limited("--batch-max", "10")
    add = {"method": "add", "params": {"path": "b/0", "value": 1}}
    echo = {"id": 1, "method": "echo", "params": {}}
    with daemon.connect() as wire:
        wire.send([echo] * 10)
        assert [wire.receive() for _ in range(10)] == [{"id": 1, "result": {}}] * 10
        refused(wire, json.dumps([add, *[echo] * 10]))
        with daemon.connect() as other:
            assert other.result("get", {"path": {"startsWith": "b/"}}) == []
    witness.check()
    assert daemon.limit_hits("batch_max") == 1


def test_batch_bytes_max(limited: Limited) -> None:
    """A batch of 2012 whose answer would be too long is answered by several batches, and nothing is lost."""
    daemon, witness = limited("--batch-bytes-max", "1000")
    requests = [{"id": number, "method": "remove", "params": ["x"]} for number in range(100)]
    with daemon.connect() as wire:
        wire.send(requests)
        answered: list[int] = []
        while len(answered) < 100:
            batch = wire.receive()
            assert len(json.dumps(batch)) < 1500
            answered += [response["id"] for response in batch]
        assert answered == list(range(100))
    witness.check()
    assert daemon.limit_hits("batch_bytes_max") > 1


def test_members_max(limited: Limited) -> None:
    """An element of 2012 may be described by so many members of its owner's own, however they come together."""
    daemon, witness = limited("--members-max", "3")
    described = {"type": "state", "schema": "x", "value": 1, "a": 1, "b": 2}
    with daemon.connect() as wire:
        assert wire.error("add", ["s", {**described, "c": 3, "d": 4}])["code"] == -32603
        assert wire.result("add", ["s", described]) == {}
        assert wire.result("notify", ["s", {"a": 5, "c": 6}]) == {}
        assert wire.error("notify", ["s", {"value": 2, "d": 7}])["code"] == -32603
        assert wire.result("get", {"path": {"equals": "s"}})[0]["value"] == 1
    witness.check()
    assert daemon.limit_hits("members_max") == 2


def test_elements_max(limited: Limited) -> None:
    """No more elements than the limit can be added, until one is removed."""
    daemon, witness = limited("--elements-max", "6")
    with daemon.connect() as wire:
        for number in range(5):
            assert wire.result("add", {"path": f"e/{number}", "value": number}) is True
        error = wire.error("add", {"path": "e/5", "value": 5})
        assert error["code"] in (-32603, -32602, -32600)
        assert wire.error("add", {"path": "e/6"})["message"]
        wire.notify("add", {"path": "e/7", "value": 7})
        assert len(wire.result("get", {"path": {"startsWith": "e/"}})) == 5
        assert wire.result("change", {"path": "e/1", "value": 10}) is True
        assert wire.result("remove", {"path": "e/0"}) is True
        assert wire.result("add", {"path": "e/5", "value": 5}) is True
    witness.check()
    assert daemon.limit_hits("elements_max") == 3


def test_path_chars_max(limited: Limited) -> None:
    """A path of the greatest length can be added, a longer one cannot; characters count, not bytes."""
    daemon, witness = limited("--path-chars-max", "50")
    with daemon.connect() as wire:
        assert wire.result("add", {"path": "ü" * 50, "value": 1}) is True
        assert wire.error("add", {"path": "x" * 51, "value": 1})["message"]
        assert wire.error("add", ["x" * 51, {"type": "method"}])["message"]
        assert len(wire.result("get", {"path": {"contains": "x"}})) == 0
    witness.check()
    assert daemon.limit_hits("path_chars_max") == 2


def test_fetches_max(limited: Limited) -> None:
    """No more fetches than the limit are open to one peer, until it unfetches; others have their own count."""
    daemon, witness = limited("--fetches-max", "3")
    with daemon.connect() as wire, daemon.connect() as other:
        for number in range(3):
            assert wire.result("fetch", {"id": number, "path": {"equals": "x"}}) is True
        assert wire.error("fetch", {"id": 3})["message"]
        assert wire.error("fetch", {"id": "sorted", "sort": {}})["message"]
        assert other.result("fetch", {"id": 0, "path": {"equals": "x"}}) is True
        assert wire.result("unfetch", {"id": 0}) is True
        assert wire.result("fetch", {"id": 3, "path": {"equals": "x"}}) is True
        assert wire.receive_all() == []
    witness.check()
    assert daemon.limit_hits("fetches_max") == 2


def test_routes_max(limited: Limited) -> None:
    """No more requests than the limit wait for one owner; one more fails at once, other owners are free."""
    daemon, witness = limited("--routes-max", "2")
    with daemon.connect() as owner, daemon.connect() as caller:
        assert owner.result("add", {"path": "slow"}) is True
        for number in (1, 2):
            caller.send({"id": number, "method": "call", "params": {"path": "slow", "args": [number]}})
        error = caller.error("call", {"path": "slow", "args": [3]})
        assert error["code"] == -32603
        assert isinstance(error["data"], dict)
        witness.check()
        first, second = owner.receive(), owner.receive()
        owner.send({"id": first["id"], "result": "first"})
        assert caller.response(1) == {"id": 1, "result": "first"}
        caller.send({"id": 4, "method": "call", "params": {"path": "slow", "args": [4]}})
        third = owner.receive()
        assert third["params"] == [4]
        owner.send({"id": third["id"], "result": "third"})
        owner.send({"id": second["id"], "result": "second"})
        assert caller.response(4) == {"id": 4, "result": "third"}
        assert caller.response(2) == {"id": 2, "result": "second"}
    assert daemon.limit_hits("routes_max") == 1


def test_routes_max_counts_what_timed_out_as_done(limited: Limited) -> None:
    """A request that timed out makes room for another."""
    daemon, _ = limited("--routes-max", "1")
    with daemon.connect() as owner, daemon.connect() as caller:
        assert owner.result("add", {"path": "slow"}) is True
        assert caller.error("call", {"path": "slow", "timeout": 0.01})["code"] == -32001
        caller.send({"id": 1, "method": "call", "params": {"path": "slow"}})
        owner.receive()
        owner.send({"id": owner.receive()["id"], "result": 1})
        assert caller.response(1) == {"id": 1, "result": 1}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_max(limited: Limited, transport: str) -> None:
    """One connection more than the limit is closed, and there is room again when another peer goes."""
    daemon, witness = limited("--connections-max", "5")
    peers = [daemon.connect(), daemon.connect()]
    for peer in peers:
        peer.barrier()
    assert not can_connect(daemon, transport)
    witness.check()
    for peer in peers:
        peer.barrier()
        peer.close()
    deadline = time.monotonic() + 10
    while not can_connect(daemon, transport):
        assert time.monotonic() < deadline
    assert daemon.limit_hits("connections_max") >= 1


def can_connect(daemon: Daemon, transport: str) -> bool:
    try:
        with daemon.connect(transport) as wire:
            wire.barrier()
    except (Closed, OSError, EOFError, AssertionError):
        return False
    except Exception as error:
        if type(error).__module__.startswith("websockets"):
            return False
        raise
    return True


CHANGES = 1500
PADDING = "x" * 16_000


class Flood:
    """An owner, a fetcher that does not read, and one that reads: both with the same rule and fetch id."""

    def __init__(self, daemon: Daemon, transport: str, **params: Any) -> None:
        self.owner = daemon.connect()
        self.quick = daemon.connect()
        self.slow = daemon.connect(transport, receive_buffer_bytes=8192)
        assert self.owner.result("add", {"path": "flood/x", "value": [0, ""]}) is True
        rule = {"id": "f", "path": {"startsWith": "flood/"}, **params}
        for fetcher in (self.quick, self.slow):
            assert fetcher.result("fetch", rule) is True
            assert fetcher.receive()["params"]["value"] == [0, ""]

    def change(self, number: int) -> None:
        """One change, which the quick fetcher gets before the next is made."""
        self.owner.notify("change", {"path": "flood/x", "value": [number, PADDING]})
        assert self.quick.receive()["params"] == {
            "path": "flood/x",
            "event": "change",
            "value": [number, PADDING],
        }

    def run(self) -> None:
        for number in range(1, CHANGES + 1):
            self.change(number)
        assert self.owner.result("add", {"path": "flood/end", "value": 0}) is True
        assert self.quick.receive()["params"]["path"] == "flood/end"

    def slow_numbers(self) -> list[int]:
        """The numbers that the slow fetcher finds when it reads at last, up to the end."""
        numbers = []
        while (params := self.slow.receive()["params"])["path"] != "flood/end":
            assert params["event"] == "change"
            assert params["value"][1] == PADDING
            numbers.append(params["value"][0])
        return numbers

    def close(self) -> None:
        for wire in (self.owner, self.quick, self.slow):
            wire.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_slow_fetcher_is_conflated(limited: Limited, transport: str) -> None:
    """Above the soft limit changes of a path replace each other: fewer come, in order, and the newest always."""
    daemon, _ = limited("--outbox-soft-bytes", "100000", "--outbox-hard-bytes", "500000000")
    flood = Flood(daemon, transport)
    flood.run()
    numbers = flood.slow_numbers()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == CHANGES
    assert len(numbers) < CHANGES
    assert daemon.limit_hits("outbox_soft_bytes") >= 1
    flood.change(CHANGES + 1)
    assert flood.slow.receive()["params"]["value"][0] == CHANGES + 1
    flood.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_is_never_conflated(limited: Limited, transport: str) -> None:
    """A slow fetcher that asked for every change gets every one, in order."""
    daemon, _ = limited("--outbox-soft-bytes", "100000", "--outbox-hard-bytes", "500000000")
    flood = Flood(daemon, transport, every=True)
    flood.run()
    assert flood.slow_numbers() == list(range(1, CHANGES + 1))
    flood.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_slow_peer_is_closed_at_the_hard_limit(limited: Limited, transport: str) -> None:
    """At the hard limit the slow peer is closed; the other fetcher has seen every change."""
    daemon, witness = limited("--outbox-soft-bytes", "100000", "--outbox-hard-bytes", "2000000")
    flood = Flood(daemon, transport, every=True)
    flood.run()
    frames = flood.slow.await_closed()
    numbers = [json.loads(text)["params"]["value"][0] for text in frames]
    assert numbers == list(range(1, len(numbers) + 1)), "what came until then is whole and in order"
    assert len(numbers) < CHANGES
    witness.check()
    assert daemon.limit_hits("outbox_hard_bytes") == 1
    flood.close()


def test_conflation_keeps_adds_and_removes(limited: Limited) -> None:
    """Adds and removes are never conflated, and a change never moves across them."""
    daemon, _ = limited("--outbox-soft-bytes", "50000", "--outbox-hard-bytes", "500000000")
    flood = Flood(daemon, "unix")
    for number in range(1, 300):
        flood.change(number)
        if number % 10 == 0:
            for service, params in (
                ("remove", {"path": "flood/x"}),
                ("add", {"path": "flood/x", "value": [number, PADDING]}),
            ):
                assert flood.owner.result(service, params) is True
                flood.quick.receive()
    assert flood.owner.result("add", {"path": "flood/end", "value": 0}) is True
    events = []
    while (params := flood.slow.receive()["params"])["path"] != "flood/end":
        events.append((params["event"], params["value"][0]))
    removes_and_adds = [pair for pair in events if pair[0] != "change"]
    assert removes_and_adds == [(event, n) for n in range(10, 300, 10) for event in ("remove", "add")]
    numbers = [number for _, number in events]
    assert numbers == sorted(numbers)
    assert events[-1] == ("change", 299)
    flood.close()


def test_conflation_is_by_path(limited: Limited) -> None:
    """Of many paths that change while a fetcher sleeps, each arrives with its newest value."""
    daemon, _ = limited("--outbox-soft-bytes", "50000", "--outbox-hard-bytes", "500000000")
    flood = Flood(daemon, "unix")
    for path in range(20):
        flood.owner.notify("add", {"path": f"flood/{path}", "value": [0, ""]})
        flood.quick.receive()
    for number in range(1, 41):
        for path in range(20):
            flood.owner.notify("change", {"path": f"flood/{path}", "value": [number, PADDING]})
            assert flood.quick.receive()["params"]["value"][0] == number
    assert flood.owner.result("add", {"path": "flood/end", "value": 0}) is True
    newest: dict[str, int] = {}
    while (params := flood.slow.receive()["params"])["path"] != "flood/end":
        assert params["value"][0] >= newest.get(params["path"], 0)
        newest[params["path"]] = params["value"][0]
    assert newest == {f"flood/{path}": 40 for path in range(20)}
    flood.close()


def test_responses_are_never_conflated(limited: Limited) -> None:
    """A slow peer still gets every response, in order with the events around it."""
    daemon, _ = limited("--outbox-soft-bytes", "50000", "--outbox-hard-bytes", "500000000")
    flood = Flood(daemon, "unix")
    for number in range(1, 101):
        flood.change(number)
        flood.slow.send({"id": number, "method": "echo", "params": {}})
    assert flood.owner.result("add", {"path": "flood/end", "value": 0}) is True
    seen, newest = [], 0
    while True:
        message = flood.slow.receive()
        if "id" in message:
            seen.append(message["id"])
        elif message["params"]["path"] == "flood/end":
            break
        else:
            newest = message["params"]["value"][0]
    while len(seen) < 100:
        seen.append(flood.slow.receive()["id"])
    assert seen == list(range(1, 101))
    assert newest == 100
    flood.close()


def test_limits_have_a_metric_from_the_start(daemon: Daemon) -> None:
    """Each limit has its counter in /metrics before it is hit."""
    text = daemon.http("/metrics")[2]
    for limit in (
        "message_bytes_max",
        "depth_max",
        "path_chars_max",
        "batch_max",
        "batch_bytes_max",
        "elements_max",
        "members_max",
        "fetches_max",
        "routes_max",
        "connections_max",
        "outbox_soft_bytes",
        "outbox_hard_bytes",
    ):
        assert f'jetbus_limit_hits_total{{limit="{limit}"}} ' in text
