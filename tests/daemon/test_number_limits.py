"""Numbers that no peer could read are refused by the daemon, in every dialect and on every transport."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import jetbus
from jetbus.wire import binary
from support.daemon import Daemon
from support.wire import BinaryWire, Wire

StartDaemon = Callable[..., Daemon]
UNREADABLE = {"1e309": "numberMax", "-1E+400": "numberMax", "9" * 310: "numberMax", "9" * 5000: "numberCharsMax"}
"""Numbers, and the key of the error's data."""
READABLE = ["1e308", "18446744073709551616", "-9223372036854775808", "0." + "3" * 380, "1" * 300, '"1e309"']


@pytest.fixture(scope="module")
def daemon() -> Any:
    with Daemon.start() as started:
        yield started


def ask(wire: Wire, text: str) -> Any:
    """Send a text as it is; gives what comes back."""
    wire.send_text(text)
    return wire.receive()


@pytest.fixture(params=["tcp", "unix", "ws"])
def owner(request: pytest.FixtureRequest, daemon: Daemon) -> Any:
    with daemon.connect(request.param) as wire:
        assert wire.result("add", {"path": "n/state", "value": 0}) is True
        assert wire.result("add", {"path": "n/method"}) is True
        yield wire


@pytest.mark.parametrize("number", UNREADABLE)
@pytest.mark.parametrize("form", ["%s", "[1,%s]", '{"a":{"b":%s}}'])
def test_changes_are_refused(number: str, form: str, owner: Wire, daemon: Daemon) -> None:
    """A change with such a number is refused and not passed on, as a request and as a notification."""
    value, key = form % number, UNREADABLE[number]
    change = f'"method":"change","params":{{"path":"n/state","value":{value}}}}}'
    answer = ask(owner, f'{{"id":7,{change}')
    assert (answer["id"], answer["error"]["code"]) == (7, -32600)
    assert key in answer["error"]["data"]
    answer = ask(owner, f"{{{change}")
    assert "id" not in answer
    assert key in answer["error"]["data"]
    with daemon.connect() as other:
        assert other.result("get", {"path": {"equals": "n/state"}})[0]["value"] == 0


@pytest.mark.parametrize("number", UNREADABLE)
@pytest.mark.usefixtures("owner")
def test_everything_else_is_refused(number: str, daemon: Daemon) -> None:
    """So are add, set, call, and the forms of 2012; and in a batch only that one message."""
    with daemon.connect() as other:
        for text in (
            f'{{"id":1,"method":"add","params":{{"path":"n/new","value":{number}}}}}',
            f'{{"id":1,"method":"add","params":["n/new",{{"type":"state","value":{number}}}]}}',
            f'{{"id":1,"method":"add","params":{{"path":"n/new","element":{{"type":"state","schema":{number}}}}}}}',
            f'{{"id":1,"method":"set","params":{{"path":"n/state","value":{number}}}}}',
            f'{{"id":1,"method":"set","params":["n/state",{number}]}}',
            f'{{"id":1,"method":"set","params":{{"path":"n/state","value":1,"timeout":{number}}}}}',
            f'{{"id":1,"method":"call","params":{{"path":"n/method","args":[{number}]}}}}',
            f'{{"id":1,"method":"post","params":["n/state",{{"value":{number}}}]}}',
            f'{{"id":1,"method":"echo","params":{{"a":{number}}}}}',
        ):
            assert UNREADABLE[number] in ask(other, text)["error"]["data"], text
    with daemon.connect() as other:
        other.send_text(
            f'[{{"id":1,"method":"echo","params":[1]}},{{"id":2,"method":"echo","params":[{number}]}},'
            '{"id":3,"method":"echo","params":[3]}]'
        )
        answers = [other.receive() for _ in range(3)]
        assert [received.get("result") for received in answers] == [[1], None, [3]]


@pytest.mark.parametrize("number", UNREADABLE)
def test_descriptions_are_refused(number: str, owner: Wire, daemon: Daemon) -> None:
    """A schema or another member of an element with such a number is refused and shown to nobody."""
    described = f'{{"type":"state","unit":[{number}]}}'
    for text in (
        f'{{"id":1,"method":"add","params":{{"path":"n/new","value":1,"schema":{{"maximum":{number}}}}}}}',
        f'{{"id":1,"method":"add","params":{{"path":"n/new","schema":{number}}}}}',
        f'{{"id":1,"method":"add","params":{{"path":"n/new","element":{described}}}}}',
        f'{{"id":1,"method":"change","params":{{"path":"n/state","schema":{{"maximum":{number}}}}}}}',
        f'{{"id":1,"method":"change","params":{{"path":"n/method","schema":[{number}]}}}}',
        f'{{"id":1,"method":"change","params":{{"path":"n/state","element":{described}}}}}',
        f'{{"id":1,"method":"change","params":["n/method",{{"unit":[{number}]}}]}}',
        f'{{"id":1,"method":"post","params":{{"path":"n/state","event":"change","data":{{"unit":[{number}]}}}}}}',
    ):
        assert UNREADABLE[number] in ask(owner, text)["error"]["data"], text
    with daemon.connect() as other:
        found = other.result("get", {"path": {"startsWith": "n/"}, "schema": True})
        assert {entry["path"]: entry.get("schema") for entry in found} == {"n/state": None, "n/method": None}


@pytest.mark.parametrize("number", UNREADABLE)
def test_batches_of_2012(number: str, daemon: Daemon) -> None:
    """Of a batch that is answered by one batch only the messages with such a number are refused."""
    with daemon.connect() as wire:
        answers = ask(
            wire,
            '[{"id":1,"method":"add","params":["n/old",{"type":"state","value":1}]},'
            f'{{"id":2,"method":"change","params":["n/old",{number}]}},'
            f'{{"method":"change","params":["n/old",{number}]}},'
            '{"id":3,"method":"echo","params":[3]}]',
        )
        assert [received["id"] for received in answers] == [1, 2, None, 3]
        assert [UNREADABLE[number] in received.get("error", {}).get("data", {}) for received in answers] == [
            False,
            True,
            True,
            False,
        ]
        with daemon.connect() as other:
            assert other.result("get", {"path": {"equals": "n/old"}})[0]["value"] == 1


@pytest.mark.parametrize("number", UNREADABLE)
def test_answers_are_refused(number: str, owner: Wire, daemon: Daemon) -> None:
    """An owner's answer with such a number is an error for whoever asked."""
    with daemon.connect() as other:
        other.send({"id": 1, "method": "call", "params": {"path": "n/method", "args": []}})
        routed = owner.receive()
        owner.send_text(f'{{"id":{json.dumps(routed["id"])},"result":{{"a":[{number}]}}}}')
        answer = other.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32600)


@pytest.mark.parametrize("value", READABLE)
def test_other_numbers_stay_untouched(value: str, owner: Wire, daemon: Daemon) -> None:
    """64-bit integers and long decimals are passed on to the character."""
    with daemon.connect() as other:
        other.result("fetch", {"id": "f", "path": {"equals": "n/state"}})
        other.receive()
        owner.send_text(f'{{"method":"change","params":{{"path":"n/state","value":{value}}}}}')
        assert f'"value":{value}' in other.receive_text()


def body(text: str) -> bytes:
    return binary.encode_json_body(text.encode())


@pytest.mark.parametrize("number", UNREADABLE)
def test_binary(number: str, daemon: Daemon) -> None:
    """The binary protocol refuses them in JSON values, and lets bytes be bytes."""
    key = binary.encode_key("n/binary")
    with daemon.connect("binary") as wire:
        assert isinstance(wire, BinaryWire)

        def ask_binary(function: int, value: bytes) -> bytes:
            wire.send_text(
                (bytes((binary.REQUEST,)) + binary.encode_number(5) + bytes((function,)) + key + value).hex()
            )
            return bytes.fromhex(wire.receive_text())

        refused = bytes((binary.RESPONSE,)) + binary.encode_number(5) + binary.ERROR
        for text in (number, f"[1,{number}]"):
            assert ask_binary(binary.ADD_STATE, body(text)).startswith(refused)
        schema = body(f'{{"schema":{{"maximum":{number}}}}}')
        assert UNREADABLE[number].encode() in ask_binary(binary.ADD_STATE, body("1") + schema)
        assert ask_binary(binary.ADD_STATE, body("1"))[5:6] == binary.SUCCESS
        assert ask_binary(binary.NOTIFY_STATE, body(number)).startswith(refused)
        assert ask_binary(binary.SET_STATE, body(number)).startswith(refused)
        timeout = body(f'{{"timeout":{number}}}')
        assert UNREADABLE[number].encode() in ask_binary(binary.SET_STATE, body("1") + timeout)
        assert ask_binary(binary.NOTIFY_STATE, binary.encode_body(binary.BYTES, number.encode()))[5:6] == binary.SUCCESS


def test_limit_is_counted_and_set(start_daemon: StartDaemon) -> None:
    """The limit has a name, can be set, and is counted."""
    daemon = start_daemon("--number-chars-max", "10")
    with daemon.connect() as wire:
        assert wire.result("add", {"path": "a", "value": 1234567890}) is True
        error = ask(wire, '{"id":1,"method":"add","params":{"path":"b","value":12345678901}}')["error"]
        assert error["data"]["numberCharsMax"] == 10
        assert "has more than 10 characters (number_chars_max); send it as text" in error["data"]["message"]
    assert daemon.limit_hits("number_chars_max") == 1


def test_peers_are_told(start_daemon: StartDaemon) -> None:
    """A Python owner that sends an integer that is too big is told; everybody's get goes on."""
    with jetbus.Peer(f"jet://{start_daemon().listens['tcp']}") as peer:
        peer.add_state("a", 1)
        with pytest.raises(jetbus.JetError, match="beyond the range of a double"):
            peer.add_state("b", 10**320)
        assert peer.get_all("**") == {"a": 1}
