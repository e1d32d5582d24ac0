"""Both protocols on one bus: JSON and binary owners, clients and fetchers in every combination."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from support.binary.client import BinaryPeer, connect
from support.binary.layout import (
    ABSENT,
    CALL,
    JSON,
    MIMES,
    OCTETS,
    OTHER,
    PNG,
    SET,
    TEXT,
    Value,
    js,
    key,
    other,
    packed,
    refusal_in,
    text,
    value_in,
)
from support.binary.layout import FetchEvent as BinaryTold
from support.binary.sides import Answer, BinarySide, FetchEvent, JsonSide, Side
from support.daemon import Daemon
from support.strict import strict_json
from support.wire import Wire

Connect = Callable[..., BinaryPeer]
ConnectJson = Callable[..., Wire]
StartDaemon = Callable[..., Daemon]
PROTOCOLS = ("JSON", "binary")
COMBINATIONS = list(itertools.product(PROTOCOLS, repeat=3))


class MixedBus(NamedTuple):
    owner: Side
    client: Side
    fetcher: Side

    def add(self, **named: Any) -> None:
        """A state and a method, which the fetcher has seen."""
        self.fetcher.fetch("mix/")
        self.owner.add_state("mix/s", b"0", **named)
        self.owner.add_method("mix/m", **named)
        assert self.fetcher.received(2) == [FetchEvent("add", "mix/s", b"0"), FetchEvent("add", "mix/m", b"")]

    def nothing_more(self) -> None:
        for side in self:
            side.nothing_more()


@pytest.fixture(params=COMBINATIONS, ids=["{}-owner {}-client {}-fetcher".format(*c) for c in COMBINATIONS])
def bus(request: pytest.FixtureRequest, binary: Connect, jsons: ConnectJson) -> MixedBus:
    """One combination of owner, client and fetcher, each on another transport."""
    sides = [
        BinarySide(binary(transport)) if protocol == "binary" else JsonSide(jsons(transport))
        for protocol, transport in zip(request.param, ("tcp", "unix", "ws"), strict=True)
    ]
    return MixedBus(*sides)


# JSON values whose every byte must arrive: nothing here survives a parser and printer.
EXACT = {
    "biggest double": b"1.7976931348623157E+0308",
    "below double": b"-1e-400",
    "64 bits": b"18446744073709551615",
    "beyond 64 bits": b"123456789012345678901234567890",
    "long decimal": b"3.14159265358979323846264338327950288",
    "trailing zeros": b"1.500",
    "exponent": b"1E+02",
    "minus zero": b"-0",
    "300 digits": b"9" * 300,
    "key order": b'{"b":1,"a":2,"c":{"z":0,"y":0}}',
    "Unicode": '"grün 漢字 😀"'.encode(),
    "escapes": b'"\\u00fc\\ud83d\\ude00\\/\\n\\u0000"',
    "a key in Unicode": '{"größe":1,"\\u00e4":2}'.encode(),
    "mime alone": b'{"mime":"image/png"}',
    "mime and more": b'{"mime":"image/png","base64":"iVBORw==","more":1}',
    "no base64": b'{"mime":"image/png","base64":"***"}',
    "mime is a number": b'{"mime":1,"base64":"iVBORw=="}',
    "null": b"null",
    "false": b"false",
    "true": b"true",
    "empty object": b"{}",
    "empty array": b"[]",
    "empty string": b'""',
    "120 levels": b"[" * 120 + b"]" * 120,
}


# Set, call, change, remove in every combination.


def test_set(bus: MixedBus) -> None:
    """A set reaches the owner, its change the fetcher before its success the client."""
    bus.add()
    ticket = bus.client.set("mix/s", b'{"b":1,"a":[2.50]}')
    asked = bus.owner.asked()
    assert asked[1:] == ("mix/s", b'{"b":1,"a":[2.50]}', False)
    bus.owner.change("mix/s", asked.value)
    bus.owner.done(asked)
    assert bus.client.answer(ticket) == Answer(bus.client.as_asked)
    assert bus.fetcher.received(1) == [FetchEvent("change", "mix/s", b'{"b":1,"a":[2.50]}')]
    bus.nothing_more()


@pytest.mark.parametrize("arguments", [b"", b'["now",1.50]', b'{"b":1,"a":2}', b"[]"], ids=str)
def test_call(bus: MixedBus, arguments: bytes) -> None:
    """A call reaches the owner with its arguments, and the result the client."""
    bus.add()
    ticket = bus.client.call("mix/m", arguments)
    asked = bus.owner.asked()
    assert asked[1:] == ("mix/m", arguments, False)
    bus.owner.succeed(asked, b'{"y":1.0,"x":null}')
    assert bus.client.answer(ticket) == Answer(b'{"y":1.0,"x":null}')
    bus.nothing_more()


def test_change(bus: MixedBus) -> None:
    """Every change reaches the fetcher, equal values too, byte by byte."""
    bus.add()
    values = [*EXACT.values(), b"1", b"1"]
    for value in values:
        bus.owner.change("mix/s", value)
    assert bus.fetcher.received(len(values)) == [FetchEvent("change", "mix/s", value) for value in values]
    bus.nothing_more()


def test_remove(bus: MixedBus) -> None:
    """A remove tells the last value, of a method none, and then nobody finds it."""
    bus.add()
    bus.owner.change("mix/s", b"1.50")
    bus.owner.remove_state("mix/s")
    bus.owner.remove_method("mix/m")
    assert bus.fetcher.received(3) == [
        FetchEvent("change", "mix/s", b"1.50"),
        FetchEvent("remove", "mix/s", b"1.50"),
        FetchEvent("remove", "mix/m", b""),
    ]
    for ticket in (bus.client.set("mix/s", b"1"), bus.client.call("mix/m", b"[]")):
        answer = bus.client.answer(ticket)
        assert (answer.code, answer.message) == (-32602, "Invalid params")
        assert "pathNotExists" in json.loads(answer.data)
    bus.nothing_more()


@pytest.mark.parametrize("ask", ["set", "call"])
@pytest.mark.parametrize(
    "data", [b"", b'{"b":1.50,"a":[1e300]}', b'"text"', b"null"], ids=["none", "object", "text", "null"]
)
def test_error_of_the_owner(bus: MixedBus, ask: str, data: bytes) -> None:
    """The owner's own error reaches the client with code, message and data."""
    bus.add()
    ticket = bus.client.set("mix/s", b"1") if ask == "set" else bus.client.call("mix/m", b"[]")
    bus.owner.fail(bus.owner.asked(), 4711, "zu schnell: 漢", data)
    assert bus.client.answer(ticket) == Answer(b"", 4711, "zu schnell: 漢", data)
    bus.nothing_more()


@pytest.mark.parametrize("ask", ["set", "call"])
@pytest.mark.parametrize("limit_of", ["request", "element"])
def test_timeout(bus: MixedBus, ask: str, limit_of: str) -> None:
    """An owner that is too slow: the client gets -32001, and the late answer is dropped."""
    bus.add(timeout=0.05 if limit_of == "element" else 100)
    named = {"timeout": 0.05} if limit_of == "request" else {}
    ticket = bus.client.set("mix/s", b"1", **named) if ask == "set" else bus.client.call("mix/m", b"[]", **named)
    asked = bus.owner.asked()
    answer = bus.client.answer(ticket)
    assert (answer.code, answer.message) == (-32001, "Response Timeout")
    bus.owner.done(asked)
    bus.nothing_more()


@pytest.mark.parametrize("ask", ["set", "call"])
def test_owner_lost(bus: MixedBus, ask: str) -> None:
    """If the owner is lost, the client gets -32603 and the fetcher the removes."""
    bus.add()
    ticket = bus.client.set("mix/s", b"1") if ask == "set" else bus.client.call("mix/m", b"[]")
    bus.owner.asked()
    bus.owner.close()
    answer = bus.client.answer(ticket)
    assert (answer.code, answer.message) == (-32603, "Internal error")
    assert "reason" in json.loads(answer.data)
    assert bus.fetcher.received(2) == [FetchEvent("remove", "mix/s", b"0"), FetchEvent("remove", "mix/m", b"")]
    bus.client.nothing_more()
    bus.fetcher.nothing_more()


def test_value_as_result(bus: MixedBus) -> None:
    """A set with valueAsResult returns the value that the owner took."""
    bus.add()
    ticket = bus.client.set("mix/s", b"1.50", valueAsResult=True)
    asked = bus.owner.asked()
    assert asked[1:] == ("mix/s", b"1.50", True)
    bus.owner.change("mix/s", b"1.25")
    bus.owner.succeed(asked, b"1.25")
    assert bus.client.answer(ticket) == Answer(b"1.25")
    assert bus.fetcher.received(1) == [FetchEvent("change", "mix/s", b"1.25")]
    bus.nothing_more()


def test_adapted_warning(bus: MixedBus) -> None:
    """An owner that took something else says so with a warning, which reaches the client unchanged."""
    bus.add()
    ticket = bus.client.set("mix/s", b"99")
    asked = bus.owner.asked()
    warning = '{"warning":{"code":1,"message":"höchstens 10"}}'.encode()
    bus.owner.change("mix/s", b"10")
    bus.owner.succeed(asked, warning)
    assert bus.client.answer(ticket) == Answer(warning)
    assert bus.fetcher.received(1) == [FetchEvent("change", "mix/s", b"10")]
    bus.nothing_more()


@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("protocols", [("JSON", "binary"), ("binary", "JSON"), ("binary", "binary")], ids=" to ".join)
def test_every_byte_both_ways(binary: Connect, jsons: ConnectJson, protocols: tuple[str, str], value: bytes) -> None:
    """Numbers, Unicode and key order survive a set, an argument and a result untouched."""
    owner, client = (BinarySide(binary()) if p == "binary" else JsonSide(jsons()) for p in protocols)
    owner.add_state("exact/s", b"0")
    owner.add_method("exact/m")
    arguments = b"[" + value + b"]" if not value.startswith(b"[" * 120) else value
    set_ticket, call_ticket = client.set("exact/s", value, valueAsResult=True), client.call("exact/m", arguments)
    first, second = owner.asked(), owner.asked()
    assert (first.value, second.value) == (value, arguments)
    owner.succeed(first, value)
    owner.succeed(second, value)
    assert client.answer(set_ticket).result == value
    assert client.answer(call_ticket).result == value


# What JSON peers see of binary values.


def wrapped(mime: str, data: bytes) -> dict[str, str]:
    return {"mime": mime, "base64": base64.b64encode(data).decode()}


BLOB = bytes(range(256)) * 3 + b"x"
SEEN: dict[str, tuple[Value, Any]] = {
    **{
        f"{number} {mime}": (Value(number, BLOB), wrapped(mime, BLOB))
        for number, mime in MIMES.items()
        if number not in (JSON, TEXT)
    },
    "JSON": (js(b'{"b":[1,2.50],"a":null}'), {"b": [1, 2.5], "a": None}),
    "text": (text('grün "und" \\ \n\t\x00\x1f\x7f 😀\u2028'), 'grün "und" \\ \n\t\x00\x1f\x7f 😀\u2028'),
    "empty text": (text(""), ""),
    "text that looks like JSON": (text('{"a":1}'), '{"a":1}'),
    "empty octets": (Value(OCTETS, b""), wrapped("application/octet-stream", b"")),
    "1 byte": (Value(PNG, b"\xff"), wrapped("image/png", b"\xff")),
    "2 bytes": (Value(PNG, b"\xff\xfe"), wrapped("image/png", b"\xff\xfe")),
    "other mime type": (other("application/x-spectrum", BLOB), wrapped("application/x-spectrum", BLOB)),
    "other without bytes": (other("application/x-spectrum", b""), wrapped("application/x-spectrum", b"")),
    "other with quotes": (other('a/"b"\\ü\n', b"1"), wrapped('a/"b"\\ü\n', b"1")),
    "other of a known mime type": (other("image/png", b"\x89"), wrapped("image/png", b"\x89")),
    "text that is no UTF-8": (Value(TEXT, b"a\xff"), wrapped("text/plain", b"a\xff")),
    "text with a surrogate": (Value(TEXT, b"\xed\xa0\x80"), wrapped("text/plain", b"\xed\xa0\x80")),
    "121 levels": (js(b"[" * 121 + b"]" * 121), wrapped("application/json", b"[" * 121 + b"]" * 121)),
    "100,000 levels": (js(b"[" * 100_000), wrapped("application/json", b"[" * 100_000)),
    **{
        f"no JSON: {document[:30]!r}": (js(document), wrapped("application/json", document))
        for document in (
            b"",
            b" ",
            b"NaN",
            b"-Infinity",
            b"01",
            b"+1",
            b"1.",
            b".5",
            b"0x10",
            b"1 2",
            b"tru",
            b"True",
            b"[1,]",
            b'{"a":1,}',
            b"{1:2}",
            b"{'a':1}",
            b'"\x01"',
            b'"\\q"',
            b'"\\u12"',
            b'"\\ud800"',
            b'"\xff"',
            b'"\xed\xa0\x80"',
            b"\xef\xbb\xbf1",
            b"\xc2\xa01",
            b"1}",
            b'1,"fetchOnly":true',
            b'"',
            b"\x00",
            b"1\x00",
        )
    },
}


@pytest.mark.parametrize(("value", "seen"), SEEN.values(), ids=SEEN)
def test_what_json_peers_see(binary: Connect, jsons: ConnectJson, value: Value, seen: Any) -> None:
    """A JSON peer sees each value type as the table says: in get, fetch, set, call, result and error alike."""
    peer, wire = binary(), jsons()
    fetcher = jsons("ws")
    fetcher.result("fetch", {"id": "f"})
    peer.add_state("seen/s", js(0))
    peer.notify("seen/s", value)
    peer.add_method("seen/m")
    peer.add_state("seen/t", value)
    assert [strict_json(fetcher.receive_text())["params"] for _ in range(4)] == [
        {"path": "seen/s", "event": "add", "value": 0},
        {"path": "seen/s", "event": "change", "value": seen},
        {"path": "seen/m", "event": "add"},
        {"path": "seen/t", "event": "add", "value": seen},
    ]
    assert [
        entry["value"] for entry in wire.result("get", {"path": {"contains": "seen/"}, "value": {"equalsNot": 5}})
    ] == [
        seen,
        seen,
    ]
    for method, params in (("set", {"path": "seen/s", "value": 1}), ("call", {"path": "seen/m"})):
        wire.send({"id": method, "method": method, "params": params})
        peer.succeed(peer.asked().id, value)
        assert strict_json(wire.receive_text()) == {"id": method, "result": seen}
    assert wire.result("add", {"path": "json/s", "value": 1}) is True
    number = peer.start_set("json/s", value)
    routed = strict_json(wire.receive_text())
    assert (routed["method"], routed["params"]) == ("json/s", {"value": seen})
    wire.send({"id": routed["id"], "result": True})
    assert peer.response(number).ok
    assert wire.result("add", {"path": "json/m"}) is True
    number = peer.start_call("json/m", value)
    routed = strict_json(wire.receive_text())
    assert (routed["method"], routed["params"]) == ("json/m", seen)
    wire.send({"id": routed["id"], "result": None})
    assert peer.response(number).ok


@pytest.mark.parametrize("document", [b"1 ", b"\n[1, 2]\t", b' {"a" : 1}'])
def test_json_with_spaces(binary: Connect, jsons: ConnectJson, document: bytes) -> None:
    """Spaces around and inside of JSON are JSON, too, and binary peers get them as they are."""
    peer, wire = binary(), jsons()
    peer.add_state("space/s", js(document))
    assert wire.result("get", {}) == [{"path": "space/s", "event": "add", "value": json.loads(document)}]
    assert binary("ws").get("space/")[0].value == js(document)


@pytest.mark.parametrize("answer", [None, ABSENT], ids=["nothing", "type 0"])
def test_success_without_a_value(binary: Connect, jsons: ConnectJson, answer: Value | None) -> None:
    """A call without a result is null for a JSON peer, a set without one is true."""
    peer, wire = binary(), jsons()
    peer.add_method("absent/m")
    peer.add_state("absent/s", js(1))
    wire.send({"id": 1, "method": "call", "params": {"path": "absent/m"}})
    asked = peer.asked()
    assert asked.value == ABSENT
    peer.succeed(asked.id, answer)
    assert wire.receive() == {"id": 1, "result": None}
    wire.send({"id": 2, "method": "set", "params": {"path": "absent/s", "value": 2}})
    peer.succeed(peer.asked().id, answer)
    assert wire.receive()["result"] in ([True] if answer is None else [True, None])


@pytest.mark.parametrize("answer", [True, {}], ids=["true", "{}"])
def test_json_for_as_asked(binary: Connect, jsons: ConnectJson, answer: Any) -> None:
    """The true or {} that a JSON owner answers to a set is success without a value, to a call it is the result."""
    wire, client = jsons(), binary()
    wire.result("add", {"path": "asked/s", "value": 1})
    wire.result("add", {"path": "asked/m"})
    number = client.start_set("asked/s", js(2))
    wire.send({"id": wire.receive()["id"], "result": answer})
    assert client.response(number) == (number, True, b"")
    number = client.start_call("asked/m")
    wire.send({"id": wire.receive()["id"], "result": answer})
    assert client.response(number) == (number, True, packed(js(answer)))


# What binary peers get of JSON values.


SENT: dict[str, tuple[Any, Value]] = {
    **{
        f"{number} {mime}": (wrapped(mime, BLOB), Value(number, BLOB))
        for number, mime in MIMES.items()
        if number not in (JSON, TEXT)
    },
    "JSON by its bytes": (wrapped("application/json", b'{"a": 1.50}'), js(b'{"a": 1.50}')),
    "text by its bytes": (wrapped("text/plain", b"x"), text("x")),
    "other mime type": (wrapped("application/x-spectrum", BLOB), other("application/x-spectrum", BLOB)),
    "no bytes": (wrapped("image/png", b""), Value(PNG, b"")),
    "members in the other order": ({"base64": "iVBORw==", "mime": "image/png"}, Value(PNG, b"\x89PNG")),
    "number": (5, js(5)),
    "string": ("x", js("x")),
    "null": (None, js(None)),
    "object": ({"b": 1, "a": 2}, js(b'{"b":1,"a":2}')),
    "three members": ({**wrapped("image/png", b"1"), "x": 1}, js({**wrapped("image/png", b"1"), "x": 1})),
    "mime alone": ({"mime": "image/png"}, js({"mime": "image/png"})),
    "bad base64": ({"mime": "image/png", "base64": "%%%%"}, js({"mime": "image/png", "base64": "%%%%"})),
    "cut base64": ({"mime": "image/png", "base64": "iVBORw="}, js({"mime": "image/png", "base64": "iVBORw="})),
    "base64 is a number": ({"mime": "image/png", "base64": 1}, js({"mime": "image/png", "base64": 1})),
    "mime is null": ({"mime": None, "base64": ""}, js({"mime": None, "base64": ""})),
    "inside of a list": ([wrapped("image/png", b"1")], js([wrapped("image/png", b"1")])),
}


@pytest.mark.parametrize(("sent", "got"), SENT.values(), ids=SENT)
def test_what_binary_owners_get(binary: Connect, jsons: ConnectJson, sent: Any, got: Value) -> None:
    """A JSON peer's value reaches a binary owner as the table says, in a set and as arguments."""
    owner, wire = binary(), jsons()
    owner.add_state("sent/s", Value(PNG, b""))
    owner.add_method("sent/m")
    wire.send({"id": 1, "method": "set", "params": {"path": "sent/s", "value": sent}})
    assert owner.asked().value == got
    if isinstance(sent, dict | list):
        wire.send({"id": 2, "method": "call", "params": {"path": "sent/m", "args": sent}})
        assert owner.asked().value == got


@pytest.mark.parametrize(("sent", "got"), SENT.values(), ids=SENT)
def test_what_binary_clients_get(binary: Connect, jsons: ConnectJson, sent: Any, got: Value) -> None:
    """A JSON owner's result reaches a binary client as the table says."""
    wire, client = jsons(), binary()
    wire.result("add", {"path": "sent/m"})
    wire.result("add", {"path": "sent/s", "value": 1})
    for number in (client.start_call("sent/m", js([])), client.start_set("sent/s", js(1), valueAsResult=True)):
        wire.send({"id": wire.receive()["id"], "result": sent})
        response = client.response(number)
        assert response.ok
        assert value_in(response.payload) == got


@pytest.mark.parametrize("value", [wrapped("image/png", b"\x89PNG"), "text", {"b": 1, "a": None}, None, 1.5])
def test_states_of_json_owners_are_json(binary: Connect, jsons: ConnectJson, value: Any) -> None:
    """States of JSON owners are application/json for binary peers, whatever is in them."""
    wire, peer, client = jsons(), binary("ws"), jsons("ws")
    fetch_id = peer.fetch("owned/")
    wire.result("add", {"path": "owned/s", "value": value})
    wire.result("change", {"path": "owned/s", "value": value})
    wire.result("add", {"path": "owned/m"})
    assert [received[1:] for received in peer.received(fetch_id, 3)] == [
        ("add", "owned/s", js(value), False),
        ("change", "owned/s", js(value), False),
        ("add", "owned/m", ABSENT, False),
    ]
    assert peer.get("owned/s")[0].value == js(value)
    client.notify("set", {"path": "owned/s", "value": value})
    assert wire.receive() == {"method": "owned/s", "params": {"value": value}}


@pytest.mark.parametrize(
    ("held", "sent", "got"),
    [
        (text("a"), 'grün \\ "', text('grün \\ "')),
        (text(""), "", text("")),
        (text("a"), 5, js(5)),
        (text("a"), wrapped("image/png", b"1"), Value(PNG, b"1")),
        (js("a"), "b", js("b")),
        (Value(OCTETS, b"a"), "b", js("b")),
        (Value(12, b"<p>"), "<b>", js("<b>")),
        (other("text/x", b"a"), "b", js("b")),
    ],
    ids=["text", "empty", "number to text", "image to text", "JSON", "octets", "HTML", "other"],
)
def test_strings_to_texts(binary: Connect, jsons: ConnectJson, held: Value, sent: Any, got: Value) -> None:
    """A string that is set on a state that holds text/plain is text/plain; on any other state it is JSON."""
    owner, wire = binary(), jsons()
    owner.add_state("text/s", js(0))
    owner.notify("text/s", held)
    owner.barrier()
    wire.send({"id": 1, "method": "set", "params": {"path": "text/s", "value": sent}})
    assert owner.asked().value == got


def test_escapes_in_strings_to_texts(binary: Connect, jsons: ConnectJson) -> None:
    """The escapes of a JSON string are read when it becomes text."""
    owner, wire = binary(), jsons()
    owner.add_state("text/s", text("a"))
    wire.send_text('{"id":1,"method":"set","params":{"path":"text/s","value":"\\u00fc\\ud83d\\ude00\\n\\/"}}')
    assert owner.asked().value == text("ü😀\n/")


def test_round_trip_of_what_a_json_peer_sees(binary: Connect, jsons: ConnectJson) -> None:
    """A JSON peer can set a binary state to the value it has seen, and the owner gets the same bytes."""
    owner, wire = binary(), jsons()
    owner.add_state("round/s", js(0))
    for name, (value, seen) in SEEN.items():
        owner.notify("round/s", value)
        owner.barrier()
        (entry,) = wire.result("get", {})
        assert entry["value"] == seen
        wire.notify("set", {"path": "round/s", "value": entry["value"]})
        got = owner.asked().value
        expected = Value(PNG, b"\x89") if value.type == OTHER and value.data == key("image/png") + b"\x89" else value
        if name == "JSON":
            assert got.json == value.json
        else:
            assert got == expected, name


def test_errors_with_data_that_is_no_json(binary: Connect, jsons: ConnectJson) -> None:
    """Error data that claims to be JSON and is not reaches a JSON client as mime and base64."""
    owner, wire = binary(), jsons()
    owner.add_state("bad/s", js(0))
    wire.send({"id": 1, "method": "set", "params": {"path": "bad/s", "value": 1}})
    owner.fail(owner.asked().id, 7, 'say "no"\n', js(b'{"a":'))
    assert strict_json(wire.receive_text()) == {
        "id": 1,
        "error": {"code": 7, "message": 'say "no"\n', "data": wrapped("application/json", b'{"a":')},
    }


JSON_ERRORS = {
    "no i32": {"code": 2**31, "message": "m"},
    "huge code": {"code": 10**400, "message": "m"},
    "a fraction": {"code": 1.5, "message": "m"},
    "code is a text": {"code": "x", "message": "m"},
    "no code": {"message": "m"},
    "no message": {"code": 5},
    "message is a number": {"code": 5, "message": 5},
    "message of 70,000 characters": {"code": 5, "message": "ü" * 70_000},
    "a text": "broken",
    "a number": 5,
    "null": None,
    "a list": [1, 2],
}


@pytest.mark.parametrize("error", JSON_ERRORS.values(), ids=JSON_ERRORS)
@pytest.mark.parametrize("function", [SET, CALL])
def test_odd_errors_of_json_owners(binary: Connect, jsons: ConnectJson, function: int, error: Any) -> None:
    """However odd the error of a JSON owner is, a binary client gets an error that it can read."""
    wire, client = jsons(), binary()
    wire.result("add", {"path": "odd/s", "value": 1})
    wire.result("add", {"path": "odd/m"})
    number = client.start_set("odd/s", js(2)) if function == SET else client.start_call("odd/m")
    wire.send_text(json.dumps({"id": wire.receive()["id"], "error": error}))
    response = client.response(number)
    assert not response.ok
    refusal = refusal_in(response.payload)
    if isinstance(error, dict) and error.get("code") == 5:
        assert refusal.code == 5
    if isinstance(error, dict) and error.get("message") == "ü" * 70_000:
        assert "ü" * 30_000 in refusal.message
    assert client.everything() == []


def test_longest_paths(start_daemon: StartDaemon) -> None:
    """The longest path that a daemon can be told to allow fits a key in any alphabet; it cannot be told more."""
    daemon = start_daemon("--path-chars-max", "16383")
    path = "😀" * 16_383
    with daemon.connect() as wire, connect(daemon) as peer:
        fetch_id = peer.fetch()
        assert wire.result("add", {"path": path, "value": 1}) is True
        assert peer.received(fetch_id, 1) == [BinaryTold(fetch_id, "add", path, js(1))]
        peer.start_set(path, js(2))
        assert wire.receive()["method"] == path
    with pytest.raises(AssertionError, match="ended before it was ready"):
        Daemon.start("--path-chars-max", "16384")


# JSON dialects.


def test_cpp_peers_as_clients(binary: Connect, jsons: ConnectJson) -> None:
    """A C++ peer gets its own forms of success and timeout from a binary owner."""
    owner, wire = binary(), jsons()
    owner.add_state("cpp/s", js(0))
    owner.add_method("cpp/m")
    wire.send({"id": 1, "jsonrpc": "2.0", "method": "set", "params": {"path": "cpp/s", "value": 1}})
    owner.succeed(owner.asked().id)
    assert wire.receive() == {"id": 1, "result": {}}
    wire.send({"id": 2, "jsonrpc": "2.0", "method": "call", "params": {"path": "cpp/m", "timeout": 0.05}})
    assert wire.receive()["error"]["code"] == -32603


def test_node_jet_3_as_owner(binary: Connect, jsons: ConnectJson) -> None:
    """A node-jet 3 owner is asked in its own form by a binary client, and sees Add and Change."""
    wire, client, owner = jsons("ws"), binary(), binary()
    assert wire.request("info", {})["result"]
    assert wire.result("add", {"path": "nj/s", "value": 1}) is True
    number = client.start_set("nj/s", js(b"2.50"))
    asked = wire.receive()
    assert (asked["method"], asked["params"]) == ("set", {"path": "nj/s", "value": 2.5})
    wire.send({"id": asked["id"], "result": True})
    assert client.response(number).ok
    assert wire.result("fetch", {"id": "f", "path": {"startsWith": "b/"}}) is True
    owner.add_state("b/s", text("x"))
    owner.notify("b/s", Value(PNG, b"\x89"))
    assert [wire.receive()["params"] for _ in range(2)] == [
        {"path": "b/s", "event": "Add", "value": "x"},
        {"path": "b/s", "event": "Change", "value": wrapped("image/png", b"\x89")},
    ]


def test_legacy_peers(binary: Connect, jsons: ConnectJson) -> None:
    """A legacy peer sees binary states and their nodes, and is asked by binary clients in its own form."""
    wire, peer = jsons(), binary()
    assert wire.request("add", ["old/s", {"type": "state", "value": 1}])["result"] == {}
    assert wire.request("fetch", ["all", "^new"])["result"] == {}
    peer.add_state("new/s", text("x"))
    peer.notify("new/s", Value(PNG, b"\x89"))
    assert [wire.receive()["params"] for _ in range(3)] == [
        {"event": "add", "path": "new", "data": {"type": "node"}},
        {"event": "add", "path": "new/s", "data": {"type": "state", "value": "x"}},
        {"event": "change", "path": "new/s", "data": {"value": wrapped("image/png", b"\x89")}},
    ]
    fetch_id = peer.fetch("old/")
    peer.received(fetch_id, 1)
    number = peer.start_set("old/s", text("y"))
    asked = wire.receive()
    assert (asked["method"], asked["params"]) == ("old/s", ["y"])
    wire.send({"method": "post", "params": {"path": "old/s", "event": "change", "data": {"value": "y"}}})
    wire.send({"id": asked["id"], "result": {}})
    assert peer.received(fetch_id, 1) == [BinaryTold(fetch_id, "change", "old/s", js("y"))]
    assert peer.response(number).ok


# The rest of what is common.


@pytest.mark.parametrize("function", [SET, CALL])
def test_events_to_json_owners(binary: Connect, jsons: ConnectJson, function: int) -> None:
    """A set or call sent as an event reaches a JSON owner as a notification."""
    wire, peer = jsons(), binary()
    wire.result("add", {"path": "e/s", "value": 1})
    wire.result("add", {"path": "e/m"})
    peer.tell(function, key("e/s" if function == SET else "e/m") + packed(js([1])))
    params = {"value": [1]} if function == SET else [1]
    assert wire.receive() == {"method": "e/s" if function == SET else "e/m", "params": params}
    assert peer.everything() == []


@pytest.mark.parametrize("method", ["set", "call"])
def test_notifications_to_binary_owners(binary: Connect, jsons: ConnectJson, method: str) -> None:
    """A JSON set or call without an id reaches a binary owner as an event."""
    wire, owner = jsons(), binary()
    owner.add_state("e/s", js(1))
    owner.add_method("e/m")
    wire.notify(method, {"path": "e/s" if method == "set" else "e/m", "value": [1], "args": [1]})
    asked = owner.asked()
    assert (asked.id, asked.value) == (None, js([1]))
    assert wire.receive_all() == []


def test_fetch_only_is_shown_to_both(binary: Connect, jsons: ConnectJson) -> None:
    """A read-only state of either protocol is read-only in both."""
    wire, peer = jsons(), binary()
    wire.result("add", {"path": "ro/j", "value": 1, "fetchOnly": True})
    peer.add_state("ro/b", js(2), fetchOnly=True)
    assert [entry.fetch_only for entry in peer.get("ro/")] == [True, True]
    assert [entry["fetchOnly"] for entry in wire.result("get", {})] == [True, True]
    assert peer.refused(SET, key("ro/j") + packed(js(1))).data.json == {"fetchOnly": "ro/j"}
    assert wire.error("set", {"path": "ro/b", "value": 1})["data"] == {"fetchOnly": "ro/b"}


def test_value_rules_see_the_same(binary: Connect, jsons: ConnectJson) -> None:
    """A JSON peer's value rules and sorting look at the JSON that it would see of a binary value."""
    wire, peer = jsons(), binary()
    for path, value in (("v/1", text("b")), ("v/2", js("a")), ("v/3", Value(PNG, b"1")), ("v/4", js(b"1e300"))):
        peer.add_state(path, value)
    for rule, paths in (
        ({"value": {"equals": "b"}}, ["v/1"]),
        ({"value": {"isType": "string"}}, ["v/1", "v/2"]),
        ({"valueField": {"mime": {"equals": "image/png"}}}, ["v/3"]),
        ({"value": {"greaterThan": 5}}, ["v/4"]),
        ({"sort": {"byValue": "string"}}, ["v/2", "v/1"]),
        ({"sort": {"byValue": "number"}}, ["v/4"]),
    ):
        assert [entry["path"] for entry in wire.result("get", rule)] == paths, rule


def test_get_and_peers_show_both(binary: Connect, jsons: ConnectJson) -> None:
    """Elements of both protocols are listed in order of creation, and each peer's state says what it is."""
    wire, peer = jsons(), binary()
    wire.result("add", {"path": "a/1", "value": 1})
    peer.add_state("a/2", text("zwei"))
    wire.result("add", {"path": "a/3"})
    peer.add_method("a/4")
    assert [(e.path, e.value) for e in peer.get("a/")] == [
        ("a/1", js(1)),
        ("a/2", text("zwei")),
        ("a/3", ABSENT),
        ("a/4", ABSENT),
    ]
    assert wire.result("get", {}) == [
        {"path": "a/1", "event": "add", "value": 1},
        {"path": "a/2", "event": "add", "value": "zwei"},
        {"path": "a/3", "event": "add"},
        {"path": "a/4", "event": "add"},
    ]
