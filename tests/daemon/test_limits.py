"""Every limit that is crossed gives a clear error or a close, harms nobody else, and is counted."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon
from support.strict import Witness
from support.wire import Closed, TcpWire, Wire

StartDaemon = Callable[..., Daemon]
TRANSPORTS = ["tcp", "unix", "ws"]


@pytest.fixture
def limited(start_daemon: StartDaemon) -> Iterator[Callable[..., tuple[Daemon, Witness]]]:
    """A daemon with this limit and a witness on it, which is checked after the test.

    It does not ping: a peer that does not read answers no pings, and would be closed for that if a test takes long.
    """
    witnesses = []

    def start(*options: str) -> tuple[Daemon, Witness]:
        daemon = start_daemon("--ws-ping-s", "0", *options)
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


@pytest.mark.parametrize("start", ["", '{"id":1,"method":"echo","params":', '{"id":', '"x" '], ids=repr)
@pytest.mark.parametrize("levels", [30, 100_000])
def test_brackets_left_open(limited: Limited, start: str, levels: int) -> None:
    """A text that is deep but leaves brackets open is answered as no JSON."""
    daemon, witness = limited("--depth-max", "20")
    with daemon.connect() as wire:
        wire.send_text(start + "[" * levels)
        assert wire.receive()["error"]["code"] == -32700
    witness.check()
    assert daemon.limit_hits("depth_max") == 0


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


def test_schema_bytes_max(limited: Limited) -> None:
    """A schema may have so many bytes, in an add and in a change, in the dialect of today and in that of 2012."""
    daemon, witness = limited("--schema-bytes-max", "20")
    fits, too_long = {"title": "x" * 8}, {"title": "x" * 9}
    with daemon.connect() as wire, daemon.connect() as old:
        assert wire.error("add", {"path": "s", "value": 1, "schema": too_long})["code"] == -32603
        assert wire.result("add", {"path": "s", "value": 1, "schema": fits}) is True
        assert wire.error("change", {"path": "s", "value": 2, "schema": too_long})["code"] == -32603
        assert old.error("add", ["t", {"type": "state", "schema": "x" * 19, "value": 1}])["code"] == -32603
        assert old.result("add", ["t", {"type": "state", "schema": "x" * 18, "value": 1}]) == {}
        assert old.error("notify", ["t", {"schema": "x" * 19}])["code"] == -32603
        found = wire.result("get", {"schema": True, "path": {"equals": "s"}})
        assert found == [{"path": "s", "event": "add", "value": 1, "schema": fits}]
    witness.check()
    assert daemon.limit_hits("schema_bytes_max") == 4


def test_quality_bytes_max(limited: Limited) -> None:
    """The quality of a value may have so many bytes; a value with a longer one is refused."""
    daemon, witness = limited("--quality-bytes-max", "40")
    fits, too_long = {"level": "bad", "reason": "x" * 13}, {"level": "bad", "reason": "x" * 14}
    with daemon.connect() as wire:
        assert wire.error("add", {"path": "s", "value": 1, "quality": too_long})["code"] == -32603
        assert wire.result("add", {"path": "s", "value": 1, "quality": fits}) is True
        assert wire.error("change", {"path": "s", "value": 2, "quality": too_long})["code"] == -32603
        found = wire.result("get", {"meta": True, "path": {"equals": "s"}})
        assert found == [{"path": "s", "event": "add", "value": 1, "quality": fits}]
    witness.check()
    assert daemon.limit_hits("quality_bytes_max") == 2


def test_limits_of_the_past(limited: Limited, tmp_path: Path) -> None:
    """A value of the past is refused if it is too old, ahead of the clock, or one of too many in a turn."""
    options = ["--past-s-max", "60", "--future-s-max", "30", "--past-values-max", "5"]
    daemon, witness = limited("--journal", str(tmp_path / "log"), *options)

    def past(ago_s: float, value: int = 1) -> dict[str, Any]:
        return {"path": "s", "value": value, "ts": int((time.time() - ago_s) * 1e6), "past": True}

    with daemon.connect() as wire:
        wire.result("add", {"path": "s", "value": 0})
        for name, ago_s in {"past_s_max": 100, "future_s_max": -1000}.items():
            error = wire.error("change", past(ago_s))
            assert (error["code"], error["data"]["reason"]) == (-32603, f"{name} reached")
            assert daemon.limit_hits(name) == 1
        wire.result("change", past(50))
        wire.result("change", past(-1))
        assert wire.result("get", {"path": {"equals": "s"}})[0]["value"] == 0
        wire.send([{"id": number, "method": "change", "params": past(40, number)} for number in range(8)])
        answers = [wire.receive() for _ in range(8)]
        assert [answer["id"] for answer in answers if "error" in answer] == [5, 6, 7]
        assert daemon.limit_hits("past_values_max") == 3
        wire.result("change", past(30))
    witness.check()


def test_check_bytes_max(limited: Limited) -> None:
    """A value that is longer is refused where the daemon would have to check it, by JSON and binary peers alike."""
    daemon, _ = limited("--check-bytes-max", "20")
    schema = {"items": {"type": "integer"}}
    with daemon.connect() as owner, daemon.connect() as other, daemon.connect("binary") as typed:
        assert owner.result("add", {"path": "s", "value": [], "schema": schema, "check": "schema"}) is True
        assert owner.result("add", {"path": "free", "value": []}) is True
        assert other.error("set", {"path": "s", "value": [1] * 10})["code"] == -32603
        typed.send_text("02 05000000 03 0100 's' 01 15000000 '[1,1,1,1,1,1,1,1,1,1]'")
        assert typed.receive_text().startswith(typed.spelt("03 05000000 01"))
        other.notify("set", {"path": "s", "value": [1] * 9})
        other.notify("set", {"path": "free", "value": [1] * 100})
        other.barrier()
        assert [message["params"]["value"] for message in owner.receive_all()] == [[1] * 9, [1] * 100]
    assert daemon.limit_hits("check_bytes_max") == 2


LOGIN_REQUESTS: dict[str, dict[str, Any]] = {
    "authenticate": {"user": "ann", "password": "x" * 21},
    "passwd": {"user": "ann", "password": "x" * 21},
    "addUser": {"user": "bob", "password": "x" * 21},
    "removeUser": {"user": "x" * 21},
}


def test_login_chars_max(limited: Limited, tmp_path: Path) -> None:
    """A longer name or password is refused by every service of users before it is hashed."""
    users = tmp_path / "users.json"
    users.write_text('{"users":{"ann":{"password":"secret","auth":{}}}}', encoding="utf-8")
    daemon, _ = limited("--login-chars-max", "20", "--users", str(users))
    with daemon.connect() as wire:
        for method, params in LOGIN_REQUESTS.items():
            error = wire.error(method, params)
            assert (error["code"], error["data"]["reason"]) == (-32603, "login_chars_max reached")
        assert "fetchGroups" in wire.result("authenticate", {"user": "ann", "password": "secret"})
    assert daemon.limit_hits("login_chars_max") == len(LOGIN_REQUESTS)


def test_linger_ms_max(limited: Limited) -> None:
    """Requests whose peer has closed its side are handled for so long; then it is closed, and what it owns removed."""
    daemon, _ = limited("--linger-ms-max", "100", "--turn-us-max", "1")
    with daemon.connect() as owner, daemon.connect() as peer:
        owner.send([{"method": "add", "params": {"path": f"t/{number}", "value": number}} for number in range(2000)])
        owner.barrier()
        peer.result("add", {"path": "own", "value": 1})
        peer.send([{"id": number, "method": "get", "params": {"path": {"equals": "own"}}} for number in range(3)])
        peer.send([{"id": number, "method": "get", "params": {}} for number in range(3, 5000)])
        assert isinstance(peer, TcpWire)
        peer.shutdown_write()
        answered = peer.await_closed()
        assert 3 <= len(answered) < 5000
        assert owner.result("get", {"path": {"equals": "own"}}) == []
    assert daemon.limit_hits("linger_ms_max") == 1


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


@pytest.mark.parametrize("service", ["get", "fetch"])
def test_answer_bytes_max(limited: Limited, service: str) -> None:
    """A get or fetch whose answer would be too long is refused by name; a part of it is answered."""
    daemon, witness = limited("--answer-bytes-max", "5000")
    with daemon.connect() as owner, daemon.connect() as wire:
        for number in range(10):
            owner.result("add", {"path": f"a/{number}", "value": "x" * 1000})
        error = wire.error(service, {"id": "f", "path": {"startsWith": "a/"}})
        assert error["data"]["reason"] == "answer_bytes_max reached"
        assert "narrow the rule" in error["data"]["message"]
        assert wire.result(service, {"id": "f", "path": {"equals": "a/1"}})
    witness.check()
    assert daemon.limit_hits("answer_bytes_max") == 1


def test_search_bytes_max(limited: Limited) -> None:
    """Long gets and fetches that find no room wait for those before them, and each is answered; a gone one is not."""
    daemon, _ = limited("--search-bytes-max", "1", "--turn-us-max", "100")
    with daemon.connect() as owner, contextlib.ExitStack() as stack:
        owner.send([{"method": "add", "params": {"path": f"t/{number}", "value": 0}} for number in range(3000)])
        owner.barrier()
        peers = [stack.enter_context(daemon.connect()) for _ in range(20)]
        for peer in peers:
            peer.send({"id": 1, "method": "get", "params": {"path": {"startsWith": "t/"}}})
            peer.send({"id": 2, "method": "fetch", "params": {"id": 5, "path": {"startsWith": "t/"}}})
        for peer in peers[::2]:
            peer.close()
        for peer in peers[1::2]:
            assert len(peer.receive()["result"]) == 3000
            assert [peer.receive()["params"]["path"] for _ in range(3000)][-1] == "t/2999"
            assert peer.receive() == {"id": 2, "result": True}
    assert daemon.limit_hits("search_bytes_max") > 0


def test_path_depth_max(limited: Limited) -> None:
    """A path of so many segments can be added, whatever separates them, and one with more cannot."""
    daemon, witness = limited("--path-depth-max", "5")
    with daemon.connect() as wire:
        assert wire.result("add", {"path": "a/b/c/d/e", "value": 1}) is True
        for path in ("a/b/c/d/e/f", "a.b.c.d.e.f", "a/b.c/d.e/f"):
            assert wire.error("add", {"path": path, "value": 1})["data"]["reason"] == "path_depth_max reached"
    witness.check()
    assert daemon.limit_hits("path_depth_max") == 3


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


@pytest.mark.parametrize("level", ["address", "total"])
@pytest.mark.parametrize("limit", ["fetches", "rule_tests"])
def test_fetches_of_several_peers(start_daemon: StartDaemon, limit: str, level: str) -> None:
    """The peers of an address, and all, have no more fetches and tests than the limit, until one of them unfetches."""
    name = f"{limit}_{level}_max"
    daemon = start_daemon(f"--{name.replace('_', '-')}", "2")
    with daemon.connect() as wire, daemon.connect("ws") as other:
        for number in range(2):
            assert other.result("fetch", {"id": number, "path": {"equals": "x"}}) is True
        error = wire.error("fetch", {"id": 1, "path": {"equals": "x"}})
        assert error["data"]["reason"] == f"{name} reached"
        assert other.result("unfetch", {"id": 0}) is True
        assert wire.result("fetch", {"id": 1, "path": {"equals": "x"}}) is True
    assert daemon.limit_hits(name) == 1


def test_rule_list_max(limited: Limited) -> None:
    """A list of the greatest length passes in a test of paths and of values, one member more is refused."""
    daemon, witness = limited("--rule-list-max", "3")
    with daemon.connect() as wire:
        for op in ("containsOneOf", "equalsOneOf"):
            assert wire.result("fetch", {"id": op, "path": {op: ["a", "b", "c"]}}) is True
            assert "rule_list_max" in str(wire.error("fetch", {"id": "x", "path": {op: ["a", "b", "c", "d"]}}))
        assert wire.result("get", {"value": {"hasAllOf": [1, 2, 3]}}) == []
        assert "rule_list_max" in str(wire.error("get", {"value": {"hasAllOf": [1, 2, 3, 4]}}))
    witness.check()
    assert daemon.limit_hits("rule_list_max") == 3


def test_rule_tests_max(limited: Limited) -> None:
    """All fetches of a peer together have no more tests than the limit, until it unfetches; others have their own."""
    daemon, witness = limited("--rule-tests-max", "5")
    four = {"valueField": {f"f{number}": {"equals": 1} for number in range(4)}}
    with daemon.connect() as wire, daemon.connect() as other:
        assert wire.result("fetch", {"id": 1, **four}) is True
        assert "rule_tests_max" in str(wire.error("fetch", {"id": 2, **four}))
        assert wire.result("fetch", {"id": 3, "path": {"equals": "x"}}) is True
        assert "rule_tests_max" in str(wire.error("fetch", {"id": 4, "path": {"equals": "x"}}))
        assert other.result("fetch", {"id": 2, **four}) is True
        assert wire.result("unfetch", {"id": 1}) is True
        assert wire.result("fetch", {"id": 4, **four}) is True
        with daemon.connect() as old:
            assert "rule_tests_max" in str(old.error("fetch", {"id": 2, "matcher": {"match": ["a"] * 6}}))
    witness.check()
    assert daemon.limit_hits("rule_tests_max") == 3


HARD: dict[str, dict[str, Any]] = {
    "texts": {"path": {"containsOneOf": [f"{number:03}" for number in range(100)]}},
    "values": {"valueField": {f"f{number}": {"equals": 1} for number in range(99)}},
    "members": {"value": {"hasOneOf": ["x"]}},
}


@pytest.mark.parametrize("params", HARD.values(), ids=HARD)
def test_rule_work_max(limited: Limited, params: dict[str, Any]) -> None:
    """A fetch or get whose rule takes too much work is refused with the name of the limit, and no part of it stays."""
    daemon, witness = limited("--rule-work-max", "1000")
    with daemon.connect() as owner, daemon.connect() as wire:
        for number in range(100):
            owner.notify("add", {"path": f"work/{number}/abcdefgh", "value": [1] * 100})
        owner.barrier()
        assert "rule_work_max" in str(wire.error("get", params))
        assert "rule_work_max" in str(wire.error("fetch", {"id": "hard", **params}))
        assert wire.error("unfetch", {"id": "hard"})
        assert wire.result("fetch", {"id": "hard", "path": {"equals": "none"}}) is True
        owner.notify("change", {"path": "work/1/abcdefgh", "value": ["x"]})
        owner.barrier()
        assert wire.receive_all() == []
    witness.check()
    assert daemon.limit_hits("rule_work_max") == 2


def test_pattern_steps_max(limited: Limited) -> None:
    """Patterns with back references match no more once their peer has used up its steps in the turn of another."""
    daemon, witness = limited("--pattern-steps-max", "500")
    with daemon.connect() as owner, daemon.connect() as hostile, daemon.connect() as wire:
        hostile.result("fetch", {"id": 1, "matcher": "^(.-)(.-)(.-)%1%2%3x$"})
        wire.result("fetch", {"id": 1, "matcher": "^(%w+)/%1$"})
        owner.send([{"method": "add", "params": {"path": f"{n}{'a' * 60}bx", "value": 1}} for n in range(20)])
        owner.barrier()
        owner.result("add", {"path": "ab/ab", "value": 1})
        assert wire.receive()["params"]["path"] == "ab/ab"
    witness.check()
    assert daemon.limit_hits("pattern_steps_max") >= 1


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
        "schema_bytes_max",
        "quality_bytes_max",
        "past_s_max",
        "future_s_max",
        "past_values_max",
        "check_bytes_max",
        "login_chars_max",
        "linger_ms_max",
        "fetches_max",
        "rule_list_max",
        "rule_tests_max",
        "rule_work_max",
        "pattern_steps_max",
        "routes_max",
        "connections_max",
        "outbox_soft_bytes",
        "outbox_hard_bytes",
    ):
        assert f'jetbus_limit_hits_total{{limit="{limit}"}} ' in text


# Turns: one peer does not keep the others waiting.


def test_turn_us_max(limited: Limited) -> None:
    """A batch that takes long is cut: others are served before it is done, and its answers keep their order."""
    daemon, _ = limited("--turn-us-max", "100")
    with daemon.connect() as owner, daemon.connect() as peer, daemon.connect() as other:
        owner.send([{"method": "add", "params": {"path": f"t/{number}", "value": number}} for number in range(2000)])
        owner.barrier()
        peer.send([{"id": number, "method": "get", "params": {"path": {"startsWith": "t/"}}} for number in range(100)])
        other.barrier()
        seen = daemon.metrics()["jetbus_heavy_peers"]
        answers = [peer.receive() for _ in range(100)]
        assert seen == 1, "the other peer was served before the batch was done"
        assert [answer["id"] for answer in answers] == list(range(100))
        assert {len(answer["result"]) for answer in answers} == {2000}
    assert daemon.limit_hits("turn_us_max") > 100


def test_a_cut_batch_of_2012_is_answered_by_one_batch(limited: Limited) -> None:
    """A batch of 2012 that takes several turns is one batch still, with the error about a member without an id."""
    daemon, _ = limited("--turn-us-max", "1")
    requests: list[Any] = [{"id": number, "method": "remove", "params": ["x"]} for number in range(300)]
    with daemon.connect() as wire:
        wire.send([*requests, 5, {"id": 300, "method": "echo", "params": []}])
        answers = wire.receive()
    assert [answer["id"] for answer in answers] == [*range(300), None, 300]


def test_a_get_in_several_turns_shows_one_moment(limited: Limited) -> None:
    """States that change while a long get is under way are shown as they are at its end, all of the same moment."""
    daemon, _ = limited("--turn-us-max", "1")
    with daemon.connect() as owner, daemon.connect() as peer:
        owner.send([{"method": "add", "params": {"path": f"t/{number}", "value": 0}} for number in range(500)])
        owner.barrier()
        for value in range(1, 30):
            peer.send({"id": value, "method": "get", "params": {"path": {"startsWith": "t/"}}})
            owner.send_raw(
                b"".join(
                    _framed({"method": "change", "params": {"path": path, "value": value}}) for path in ("t/0", "t/499")
                )
            )
            shown = {entry["path"]: entry["value"] for entry in peer.receive()["result"]}
            assert shown["t/0"] == shown["t/499"] or shown["t/0"] == shown["t/499"] + 1, "the first changes first"
            owner.barrier()


def test_a_fetch_in_several_turns_misses_nothing(limited: Limited) -> None:
    """Elements added, changed and removed while a long fetch begins are reported once, in order."""
    daemon, _ = limited("--turn-us-max", "1")
    with daemon.connect() as owner, daemon.connect() as peer:
        owner.send([{"method": "add", "params": {"path": f"t/{number}", "value": 0}} for number in range(500)])
        owner.barrier()
        for attempt in range(1, 20):
            peer.send({"id": "begin", "method": "fetch", "params": {"id": "f", "path": {"startsWith": "t/"}}})
            owner.notify("change", {"path": "t/499", "value": attempt})
            owner.notify("add", {"path": "t/new", "value": attempt})
            owner.notify("remove", {"path": "t/0"})
            owner.notify("add", {"path": "t/0", "value": attempt})
            owner.barrier()
            present: dict[str, Any] = {}
            for message in peer.receive_all():
                if "id" in message:
                    continue
                event, path = message["params"]["event"], message["params"]["path"]
                assert (path in present) is (event != "add"), message
                present[path] = message["params"]["value"]
                if event == "remove":
                    del present[path]
            assert len(present) == 501
            assert (present["t/499"], present["t/new"], present["t/0"]) == (attempt, attempt, attempt)
            assert peer.result("unfetch", {"id": "f"}) is True
            assert owner.result("remove", {"path": "t/new"}) is True


def test_all_is_handled_of_a_peer_that_closes(limited: Limited) -> None:
    """Requests that a peer sends before it closes are handled, though they take several turns."""
    daemon, _ = limited("--turn-us-max", "1")
    with daemon.connect() as owner:
        assert owner.result("add", {"path": "count", "value": 0}) is True
        peer = daemon.connect()
        peer.send([{"method": "set", "params": {"path": "count", "value": number}} for number in range(1000)])
        peer.close()
        assert [owner.receive()["params"]["value"] for _ in range(1000)] == list(range(1000))


def _framed(message: Any) -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_unread_bytes_max(limited: Limited, transport: str) -> None:
    """A peer that does not read waits for its next answers, without being closed, and gets all when it reads."""
    daemon, witness = limited("--unread-bytes-max", "1000000")
    with daemon.connect() as owner, daemon.connect(transport, receive_buffer_bytes=4096) as peer:
        assert owner.result("add", {"path": "big", "value": "x" * 1_000_000}) is True
        peer.send([{"id": number, "method": "get", "params": {"path": {"equals": "big"}}} for number in range(40)])
        deadline = time.monotonic() + 10
        while not daemon.limit_hits("unread_bytes_max"):
            assert time.monotonic() < deadline
        witness.check()
        assert daemon.metrics()["jetbus_outbox_bytes"] < 10_000_000
        assert [peer.receive()["id"] for _ in range(40)] == list(range(40))


def test_outbox_total_bytes(limited: Limited) -> None:
    """If all slow peers together leave too much unread, the one that leaves most is closed."""
    daemon, _ = limited("--outbox-total-bytes", "6000000", "--outbox-soft-bytes", "10000")
    with daemon.connect() as owner:
        peers = [daemon.connect(receive_buffer_bytes=4096) for _ in range(3)]
        assert owner.result("add", {"path": "x", "value": ""}) is True
        for number, peer in enumerate(peers):
            assert peer.result("fetch", {"id": number, "path": {"equals": "x"}, "every": True}) is True
        deadline = time.monotonic() + 30
        while not daemon.limit_hits("outbox_total_bytes"):
            owner.notify("change", {"path": "x", "value": "x" * 500_000})
            owner.barrier()
            assert time.monotonic() < deadline
        for peer in peers:
            peer.close()


# What arrives and is not complete.


def _half_message(wire: Wire, size_bytes: int) -> None:
    wire.send_raw((2 * size_bytes).to_bytes(4, "big") + b"x" * size_bytes)


@pytest.mark.parametrize("limit", ["inbound_bytes_max", "inbound_address_bytes_max"])
def test_inbound_bytes_max(limited: Limited, limit: str) -> None:
    """Of many unfinished messages those are given up that have made no progress for longest; a long one passes."""
    daemon, witness = limited(f"--{limit.replace('_', '-')}", "2000000")
    halves = [daemon.connect() for _ in range(5)]
    for count, wire in enumerate(halves, 1):
        _half_message(wire, 600_000)
        if count <= 3:  # A busy daemon need not read in the order in which the messages are sent.
            _await_inbound_bytes(daemon, count * 600_000)
    witness.check()
    for wire in halves[:2]:
        assert limit in json.loads(wire.await_closed()[0])["error"]["data"]["reason"]
    with daemon.connect() as wire:
        wire.send_text(echo_of(1_500_000))
        assert "result" in wire.receive()
    for wire in halves:
        wire.close()
    assert daemon.limit_hits(limit) >= 2
    _await_inbound_bytes(daemon, 0)


def _await_inbound_bytes(daemon: Daemon, expected: int) -> None:
    """Wait until the daemon has read so many bytes of unfinished messages, without their headers."""
    deadline = time.monotonic() + 30
    while not expected <= daemon.metrics()["jetbus_inbound_bytes"] <= expected + 100:
        assert time.monotonic() < deadline


def test_handshake_s(limited: Limited) -> None:
    """A WebSocket handshake that is not completed in time is given up."""
    daemon, _ = limited("--handshake-s", "0.2")
    with socket.create_connection(daemon.address("ws"), 10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1000) == b""


def test_pages_answer_when_there_are_too_many_connections(limited: Limited) -> None:
    """Beyond connections_max /health and /metrics are answered, WebSocket is refused, and the log has one line."""
    daemon, _ = limited("--connections-max", "5")
    peers = [daemon.connect(), daemon.connect()]
    for peer in peers:
        peer.barrier()
    for _ in range(20):
        assert not can_connect(daemon, "ws")
        assert not can_connect(daemon, "tcp")
    assert daemon.http("/health")[0] == 200
    assert daemon.limit_hits("connections_max") >= 40
    assert daemon.stderr().count("refused") == 1
    for peer in peers:
        peer.close()


def test_few_bytes_that_wait_are_no_reason_to_be_closed(limited: Limited) -> None:
    """A peer with the beginning of a short message is spared where too many bytes are held, however old that is."""
    daemon, _ = limited("--inbound-bytes-max", "1000000")
    message = _framed({"id": 1, "method": "echo", "params": {"text": "x" * 100}})
    half = struct.pack(">I", 1_000_000) + b"x" * 400_000
    with daemon.connect() as peer, contextlib.ExitStack() as stack:
        peer.send_raw(message[:50])
        for _ in range(4):
            stack.enter_context(daemon.connect()).send_raw(half)
        deadline = time.monotonic() + 30
        while not daemon.limit_hits("inbound_bytes_max"):
            assert time.monotonic() < deadline
        peer.send_raw(message[50:])
        assert peer.receive()["id"] == 1
