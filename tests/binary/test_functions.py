"""Every function of the binary protocol: what it does, each way it can be refused, and both as an event."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from support.binary.client import TRANSPORTS, BinaryPeer, RawStream, connect, line_to
from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    AUTHENTICATE,
    CALL,
    CONFIG,
    FETCH,
    GET,
    JSON,
    NONE,
    NOTIFY,
    OCTETS,
    PNG,
    REMOVE_METHOD,
    REMOVE_STATE,
    SERVICE,
    SET,
    TEXT,
    UNFETCH,
    FetchEvent,
    Response,
    RoutedRequest,
    Value,
    arrived_in,
    framed,
    info,
    js,
    key,
    options,
    other,
    packed,
    refusal_in,
    request,
    success,
    text,
    u32,
    value_in,
)
from support.daemon import Daemon

Connect = Callable[..., BinaryPeer]
StartDaemon = Callable[..., Daemon]
INVALID_PARAMS = (-32602, "Invalid params")
IDS = [1, 2, 255, 256, 65_536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
VALUES = {
    "JSON": js({"b": [1, 2.50], "a": None}),
    "text": text("grün"),
    "octets": Value(OCTETS, bytes(range(256))),
    "PNG": Value(PNG, b"\x89PNG"),
    "parquet": Value(20, b"PAR1"),
    "other mime type": other("application/x-spectrum", b"\x00\x01"),
    "empty text": text(""),
    "empty octets": Value(OCTETS, b""),
    "empty JSON, which is none": Value(JSON, b""),
    "200 KB": Value(OCTETS, bytes(200_000)),
}


def entry_of(event: str, path: str, value: Value, *, fetch_only: bool = False) -> FetchEvent:
    """An entry of get."""
    return FetchEvent(0, event, path, value, fetch_only)


# Connecting.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_info_comes_first(binary: Connect, transport: str) -> None:
    """The daemon's info is the first message of every connection, before anything is asked."""
    assert binary(transport).greeting == info(1, 0, 0)


@pytest.mark.parametrize("version", [(1, 0, 0), (1, 7, 0), (1, 0, 9), (1, 0xFFFFFFFF, 0xFFFFFFFF)])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_info_of_a_peer(binary: Connect, transport: str, version: tuple[int, int, int]) -> None:
    """A peer's info is not answered, and a difference in minor or patch is ignored."""
    peer = binary(transport)
    peer.send(info(*version))
    assert peer.everything() == []


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ready_line(daemon: Daemon, transport: str) -> None:
    """The ready line says where the binary protocol is spoken, and it is spoken there."""
    assert set(daemon.listens) >= {"tcp", "ws", "unix", "binary", "binary_unix"}
    with connect(daemon, transport) as peer:
        peer.barrier()


def test_off(start_daemon: StartDaemon) -> None:
    """Binary listeners that are off are not in the ready line; over WebSocket binary is still spoken."""
    daemon = start_daemon("--binary", "off", "--binary-unix", "off")
    assert set(daemon.listens) == {"tcp", "ws", "unix"}
    with connect(daemon, "ws") as peer:
        peer.barrier()


def test_tls(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """With a certificate the binary port speaks TLS."""
    authority = trustme.CA()
    file = tmp_path / "daemon.pem"
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    daemon = start_daemon("--tls-cert", str(file))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    plain = line_to(daemon)
    with BinaryPeer(RawStream(trust.wrap_socket(plain.sock, server_hostname="localhost"))) as peer:
        peer.add_state("tls/a", text("x" * 100_000))
        assert peer.get("tls/") == [entry_of("add", "tls/a", text("x" * 100_000))]


def test_stop_with_peers() -> None:
    """A daemon that is stopped lets go of its binary peers and ends in good order."""
    daemon = Daemon.start()
    peers = [connect(daemon, transport) for transport in TRANSPORTS]
    for peer in peers:
        peer.fetch()
    daemon.stop()
    for peer in peers:
        assert peer.await_closed()[0] == []
        peer.close()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_half_closed(binary: Connect, transport: str) -> None:
    """A peer that has said that nothing more will come still gets its answers."""
    peer = binary(transport)
    peer.send(*(request(i, SERVICE, key("echo") + packed(js([i]))) for i in range(1, 20)))
    peer.line.sock.shutdown(socket.SHUT_WR)
    assert peer.await_closed()[0] == [Response(i, True, packed(js([i]))) for i in range(1, 20)]


# Ids and responses.


@pytest.mark.parametrize("number", IDS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ids_come_back(binary: Connect, transport: str, number: int) -> None:
    """A response has the id of its request, whatever it is."""
    peer = binary(transport)
    peer.send(request(number, ADD_METHOD, key("ids/m")))
    assert peer.receive() == success(number)
    peer.send(request(number, ADD_METHOD, key("ids/m")))
    (refused,) = arrived_in(peer.receive())
    assert refused[:2] == (number, False)


def test_ids_are_per_connection(binary: Connect) -> None:
    """Peers with the same ids get their own responses."""
    owner, one, two = binary("tcp"), binary("unix"), binary("ws")
    owner.add_state("ids/s", js(0))
    one.send(request(9, SET, key("ids/s") + packed(js(1))))
    first = owner.asked()
    two.send(request(9, SET, key("ids/s") + packed(js(2))))
    second = owner.asked()
    assert (first.value, second.value) == (js(1), js(2))
    assert first.id != second.id
    owner.succeed(second.id, js("two"))
    owner.succeed(first.id, js("one"))
    assert one.receive() == success(9, packed(js("one")))
    assert two.receive() == success(9, packed(js("two")))


def test_requests_in_a_row(binary: Connect) -> None:
    """Requests may be sent without waiting and are handled and answered in order."""
    peer = binary()
    adds = [request(i, ADD_STATE, key(f"row/{i}") + packed(js(i))) for i in range(1, 101)]
    peer.send(*adds, request(101, REMOVE_STATE, key("row/1")), request(102, REMOVE_STATE, key("row/1")))
    assert [peer.receive() for _ in range(101)] == [success(i) for i in range(1, 102)]
    assert not peer.response(102).ok
    assert [match.path for match in peer.get("row/")] == [f"row/{i}" for i in range(2, 101)]


def test_answers_of_owners_come_when_they_come(binary: Connect) -> None:
    """A later request is answered before an earlier one whose owner still thinks."""
    owner, client = binary(), binary("ws")
    owner.add_state("slow/s", js(0))
    number = client.start_set("slow/s", js(1))
    asked = owner.asked()
    client.barrier()
    assert not client.inbox
    owner.succeed(asked.id)
    assert client.response(number).ok


def test_an_id_that_is_used_again_in_flight(binary: Connect) -> None:
    """Two requests with one id are both done and both answered with it, in the order of the owner's answers."""
    owner, client = binary(), binary()
    owner.add_state("a", js(0))
    for value in (1, 2):
        client.send(request(7, SET, key("a") + packed(js(value))))
    first, second = owner.asked(), owner.asked()
    assert (first.value, second.value) == (js(1), js(2))
    assert first.id != second.id
    owner.succeed(second.id, js("two"))
    owner.succeed(first.id, js("one"))
    assert [client.receive() for _ in range(2)] == [success(7, packed(js(name))) for name in ("two", "one")]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_one_by_one(binary: Connect, transport: str) -> None:
    """On a stream a frame may come byte by byte; in a WebSocket message it is whole."""
    peer = binary(transport)
    message = request(5, ADD_STATE, key("bytes/s") + packed(js(1)))
    data = u32(len(message)) + message
    for piece in [data] if transport == "ws" else [bytes([byte]) for byte in data]:
        peer.send_raw(piece)
    assert peer.receive() == success(5)


# Owning.


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_add_state(binary: Connect, transport: str, value: Value) -> None:
    """A state of any value type is added and read back with the same type and bytes."""
    binary(transport).add_state("add/s", value)
    assert binary("tcp").get("add/") == [entry_of("add", "add/s", value)]


@pytest.mark.parametrize("path", ["a", "ä/漢字/😀", "with space", "x" * 4096, "😀" * 4096, "a//b", "/", 'q"\\\n'])
def test_paths(binary: Connect, path: str) -> None:
    """A path is any text of up to 4096 characters."""
    owner = binary()
    owner.add_state(path, js(1))
    owner.add_method("m/" + path[:4000])
    assert [match.path for match in binary("ws").get()] == [path, "m/" + path[:4000]]


ADD_REFUSALS: dict[str, tuple[bytes, tuple[int, str], str]] = {
    "taken": (key("own/s") + packed(js(1)), INVALID_PARAMS, "pathAlreadyExists"),
    "the daemon's": (key("$jet/x") + packed(js(1)), INVALID_PARAMS, ""),
    "too long": (key("x" * 4097) + packed(js(1)), (-32603, "Internal error"), "reason"),
    "fetchOnly is a number": (key("x") + packed(js(1)) + options({"fetchOnly": 1}), INVALID_PARAMS, "wrongType"),
    "timeout is a text": (key("x") + packed(js(1)) + options({"timeout": "1"}), INVALID_PARAMS, "wrongType"),
    "access is a list": (key("x") + packed(js(1)) + options({"access": [1]}), INVALID_PARAMS, "reason"),
}


@pytest.mark.parametrize(("payload", "error", "reason"), ADD_REFUSALS.values(), ids=ADD_REFUSALS)
def test_add_state_refused(binary: Connect, payload: bytes, error: tuple[int, str], reason: str) -> None:
    """An add that cannot be is refused with the error of the JSON protocol, and adds nothing."""
    peer = binary()
    peer.add_state("own/s", js(1))
    refusal = peer.refused(ADD_STATE, payload)
    assert refusal[:2] == error
    assert refusal.reason.startswith(reason)
    assert [match.path for match in peer.get()] == ["own/s"]


@pytest.mark.parametrize("path", ["own", "own/s/x"], ids=["a node", "below a leaf"])
def test_add_state_in_a_strict_tree(start_daemon: StartDaemon, path: str) -> None:
    """In a strict tree a position is taken by a node and by a leaf above it, for binary peers too."""
    with connect(start_daemon("--tree", "strict")) as peer:
        peer.add_state("own/s", js(1))
        refusal = peer.refused(ADD_STATE, key(path) + packed(js(1)))
        assert refusal[:2] == INVALID_PARAMS
        assert refusal.data.json == {"pathAlreadyExists": path}


@pytest.mark.parametrize("function", [ADD_STATE, SET, NOTIFY])
def test_a_state_has_a_value(binary: Connect, function: int) -> None:
    """A state always has a value: type 0 is refused."""
    peer = binary()
    peer.add_state("value/s", js(1))
    path = "value/t" if function == ADD_STATE else "value/s"
    refusal = peer.refused(function, key(path) + packed(ABSENT))
    assert (refusal[:2], refusal.reason) == (INVALID_PARAMS, "missingParam")
    assert peer.everything() == []
    assert peer.get("value/") == [entry_of("add", "value/s", js(1))]


def test_error_data_names_the_path(binary: Connect) -> None:
    """The one key of an error's data says why, its value names the path."""
    peer, somebody = binary(), binary("ws")
    peer.add_state("named/ü", js(1))
    peer.add_method("named/m")
    for asker, function, payload, data in (
        (somebody, ADD_STATE, key("named/ü") + packed(js(1)), {"pathAlreadyExists": "named/ü"}),
        (somebody, REMOVE_STATE, key("named/ü"), {"foreignPath": "named/ü"}),
        (peer, REMOVE_STATE, key("named/x"), {"pathNotExists": "named/x"}),
        (peer, REMOVE_METHOD, key("named/x"), {"pathNotExists": "named/x"}),
        (somebody, REMOVE_METHOD, key("named/m"), {"foreignPath": "named/m"}),
        (peer, NOTIFY, key("named/x") + packed(js(1)), {"pathNotExists": "named/x"}),
        (peer, NOTIFY, key("named/m") + packed(js(1)), {"pathIsNotState": "named/m"}),
        (somebody, NOTIFY, key("named/ü") + packed(js(1)), {"foreignPath": "named/ü"}),
        (somebody, SET, key("named/x") + packed(js(1)), {"pathNotExists": "named/x"}),
        (somebody, SET, key("named/m") + packed(js(1)), {"pathIsNotState": "named/m"}),
        (somebody, CALL, key("named/ü") + packed(ABSENT), {"pathIsNotMethod": "named/ü"}),
        (somebody, CALL, key("named/x") + packed(ABSENT), {"pathNotExists": "named/x"}),
    ):
        refusal = asker.refused(function, payload)
        assert (refusal[:2], refusal.data.json) == (INVALID_PARAMS, data)
    assert peer.everything() == []


def test_remove(binary: Connect) -> None:
    """A removed element is gone, and its path is free again."""
    owner = binary()
    owner.add_state("gone/s", js(1))
    owner.add_method("gone/m")
    assert owner.done(REMOVE_STATE, key("gone/s")) == b""
    assert owner.done(REMOVE_METHOD, key("gone/m")) == b""
    assert owner.get() == []
    binary("unix").add_state("gone/m", js(2))


@pytest.mark.parametrize(
    ("function", "path", "reason"),
    [(REMOVE_STATE, "kind/m", "pathIsNotState"), (REMOVE_METHOD, "kind/s", "pathIsNotMethod")],
    ids=["a method as a state", "a state as a method"],
)
def test_remove_of_the_other_kind(binary: Connect, function: int, path: str, reason: str) -> None:
    """A method is not removed as a state, nor a state as a method."""
    owner = binary()
    owner.add_state("kind/s", js(1))
    owner.add_method("kind/m")
    assert owner.refused(function, key(path)).data.json == {reason: path}
    assert [match.path for match in owner.get()] == ["kind/s", "kind/m"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_everything_goes_with_its_owner(daemon: Daemon, binary: Connect, transport: str) -> None:
    """Everything that a peer has added is removed with its connection, in order of creation."""
    watcher = binary()
    with connect(daemon, transport) as owner:
        owner.add_state("end/b", js(1))
        owner.add_method("end/a")
        fetch_id = watcher.fetch("end/")
        watcher.received(fetch_id, 2)
    assert watcher.received(fetch_id, 2) == [
        FetchEvent(fetch_id, "remove", "end/b", js(1)),
        FetchEvent(fetch_id, "remove", "end/a", ABSENT),
    ]
    assert watcher.get() == []


def test_notify(binary: Connect) -> None:
    """A notify changes the value, and the type may differ from value to value; as a request it is answered."""
    owner, other_peer = binary(), binary("ws")
    owner.add_state("notify/s", js(1))
    for value in VALUES.values():
        owner.notify("notify/s", value)
        owner.barrier()
        assert other_peer.get("notify/") == [entry_of("add", "notify/s", value)]
        assert owner.done(NOTIFY, key("notify/s") + packed(value)) == b""
    assert owner.everything() == []


def test_methods_have_no_value(binary: Connect) -> None:
    """A method is shown with a value of type 0."""
    owner = binary()
    owner.add_method("m/x")
    owner.add_method("m/y", timeout=1.5, access={})
    assert owner.get("m/") == [entry_of("add", "m/x", ABSENT), entry_of("add", "m/y", ABSENT)]


# Asking.


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_set(binary: Connect, value: Value) -> None:
    """A set reaches the owner with path, type and bytes as asked for, and its success the client."""
    owner, client = binary(), binary("ws")
    owner.add_state("set/s", text(""))
    number = client.start_set("set/s", value)
    asked = owner.asked()
    assert asked == RoutedRequest(asked.id, SET, "set/s", value, {})
    owner.send(success(asked.id or 0))
    assert client.receive() == success(number)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("function", [SET, CALL])
def test_results_are_passed_on_unchanged(binary: Connect, function: int, value: Value) -> None:
    """The response of an owner is forwarded unchanged, whatever its type."""
    owner, client = binary(), binary("unix")
    owner.add_state("result/s", js(0))
    owner.add_method("result/m")
    number = (
        client.start_set("result/s", js(1), valueAsResult=True) if function == SET else client.start_call("result/m")
    )
    owner.succeed(owner.asked().id, value)
    assert client.receive() == success(number, packed(value))


def test_value_as_result_reaches_the_owner(binary: Connect) -> None:
    """An owner gets options only if the requester asked for valueAsResult; the time limit is the daemon's affair."""
    owner, client = binary(), binary()
    owner.add_state("set/s", js(0), timeout=100)
    for given, passed in (
        ({}, {}),
        ({"timeout": 50}, {}),
        ({"unknown": {"x": 1}}, {}),
        ({"valueAsResult": False}, {}),
        ({"valueAsResult": True}, {"valueAsResult": True}),
        ({"timeout": 50, "valueAsResult": True}, {"valueAsResult": True}),
    ):
        number = client.start_set("set/s", js(1), **given)
        asked = owner.asked()
        assert asked.options == passed
        owner.succeed(asked.id)
        assert client.response(number).ok


@pytest.mark.parametrize("arguments", [ABSENT, *VALUES.values()], ids=["none", *VALUES])
def test_call(binary: Connect, arguments: Value) -> None:
    """A call reaches the owner with arguments of any type, none included, and its result the client."""
    owner, client = binary("ws"), binary()
    owner.add_method("call/m")
    number = client.start_call("call/m", arguments)
    asked = owner.asked()
    assert asked == RoutedRequest(asked.id, CALL, "call/m", arguments, {})
    owner.succeed(asked.id, js([1]))
    assert client.receive() == success(number, packed(js([1])))


@pytest.mark.parametrize("answer", [None, ABSENT], ids=["nothing", "type 0"])
def test_call_without_result(binary: Connect, answer: Value | None) -> None:
    """An owner may give no result as type 0 or as no value at all; it is passed on unchanged."""
    owner, client = binary(), binary()
    owner.add_method("call/m")
    number = client.start_call("call/m")
    owner.succeed(owner.asked().id, answer)
    assert client.receive() == success(number, b"" if answer is None else packed(answer))


@pytest.mark.parametrize("code", [0, 1, -1, -32602, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("data", [ABSENT, js({"x": 1.50}), js(b'"\\u00fc"')], ids=["no data", "object", "escape"])
def test_errors_of_the_owner(binary: Connect, code: int, data: Value) -> None:
    """An owner's error reaches the client unchanged."""
    owner, client = binary(), binary()
    owner.add_state("error/s", js(0))
    number = client.start_set("error/s", js(1))
    owner.fail(owner.asked().id, code, "zu schnell für mich", data)
    assert refusal_in(client.response(number).payload) == (code, "zu schnell für mich", data)


@pytest.mark.parametrize("function", [SET, CALL])
@pytest.mark.parametrize("where", ["request", "element"])
def test_timeout(binary: Connect, function: int, where: str) -> None:
    """An owner that does not answer within the time limit of the request, else of the element: -32001, once."""
    owner, client = binary(), binary("ws")
    of_element = {"timeout": 0.05 if where == "element" else 100}
    of_request = {"timeout": 0.05} if where == "request" else {}
    owner.add_state("late/s", js(0), **of_element)
    owner.add_method("late/m", **of_element)
    start = (
        client.start_set("late/s", js(1), **of_request)
        if function == SET
        else client.start_call("late/m", js([]), **of_request)
    )
    response = client.response(start)
    assert not response.ok
    refusal = refusal_in(response.payload)
    assert refusal[:2] == (-32001, "Response Timeout")
    assert refusal.data.json == {"path": "late/s" if function == SET else "late/m"}
    owner.succeed(owner.asked().id)
    owner.barrier()
    assert client.everything() == []
    assert owner.everything() == []


@pytest.mark.parametrize("function", [SET, CALL])
def test_owner_lost(daemon: Daemon, binary: Connect, function: int) -> None:
    """The requester gets -32603 at once if the owner is lost."""
    client = binary()
    with connect(daemon, "unix") as owner:
        owner.add_state("lost/s", js(0))
        owner.add_method("lost/m")
        start = client.start_set("lost/s", js(1)) if function == SET else client.start_call("lost/m")
        owner.asked()
    refusal = refusal_in(client.response(start).payload)
    assert refusal[:2] == (-32603, "Internal error")
    assert "reason" in refusal.data.json


def test_client_lost(daemon: Daemon, binary: Connect) -> None:
    """An owner may answer to a client that is gone; nothing comes of it."""
    owner = binary()
    owner.add_state("lost/s", js(0))
    with connect(daemon) as client:
        client.start_set("lost/s", js(1))
        asked = owner.asked()
    owner.succeed(asked.id)
    assert owner.everything() == []


def test_fetch_only_is_refused(binary: Connect) -> None:
    """The daemon refuses to set what is read-only."""
    owner, client = binary(), binary()
    owner.add_state("ro/s", js(0), fetchOnly=True)
    assert client.refused(SET, key("ro/s") + packed(js(1))).data.json == {"fetchOnly": "ro/s"}
    assert owner.refused(SET, key("ro/s") + packed(js(1))).data.json == {"fetchOnly": "ro/s"}
    assert owner.everything() == []
    assert client.get("ro/") == [entry_of("add", "ro/s", js(0), fetch_only=True)]


@pytest.mark.parametrize(
    ("function", "payload"),
    [
        (SET, key("wrong/s") + packed(js(1)) + options({"timeout": "1"})),
        (CALL, key("wrong/m") + packed(ABSENT) + options({"timeout": []})),
    ],
    ids=["set", "call"],
)
def test_wrong_options(binary: Connect, function: int, payload: bytes) -> None:
    """An option of the wrong type is refused, and the owner is not asked."""
    owner = binary()
    owner.add_state("wrong/s", js(0))
    owner.add_method("wrong/m")
    refusal = owner.refused(function, payload)
    assert refusal[:2] == INVALID_PARAMS
    assert refusal.reason == "wrongType"
    assert owner.everything() == []


def test_own_states_can_be_set(binary: Connect) -> None:
    """A peer may set its own state; ids of the two directions do not mix."""
    peer = binary()
    peer.add_state("own/s", js(0))
    number = peer.start_set("own/s", js(1))
    asked = peer.asked()
    peer.succeed(asked.id, js("done"))
    assert peer.response(number).payload == packed(js("done"))


# Services without a function of their own; config; what is unknown.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_config_gives_a_name(binary: Connect, transport: str) -> None:
    """The name of config is shown below $jet/peers/; an empty name leaves it as it is."""
    peer, watcher = binary(transport), binary()
    name = f"dashboard ü {transport}"
    assert peer.done(CONFIG, key(name)) == b""
    assert peer.done(CONFIG, key("")) == b""
    assert peer.done(CONFIG, key("") + options({"encoding": "binary", "unknown": 1})) == b""
    (entry,) = [e for e in watcher.get("$jet/peers/") if e.value.json.get("name") == name]
    assert entry.fetch_only


@pytest.mark.parametrize("encoding", ["json", "msgpack", "BINARY", ""])
def test_config_of_another_encoding(binary: Connect, encoding: str) -> None:
    """A binary connection stays binary."""
    peer = binary()
    refusal = peer.refused(CONFIG, key("") + options({"encoding": encoding}))
    assert (refusal[:2], refusal.data.json) == (INVALID_PARAMS, {"encodingNotSupported": encoding})


@pytest.mark.parametrize("document", [b"[1,2]", b'{"b":1.50,"a":[1e300,"\\u00fc"]}', b"{}"])
def test_echo(binary: Connect, document: bytes) -> None:
    """Echo gives back its parameters, byte by byte."""
    assert binary().done(SERVICE, key("echo") + packed(js(document))) == packed(js(document))


@pytest.mark.parametrize("parameters", [ABSENT, js({})], ids=["none", "empty"])
def test_info_service(binary: Connect, parameters: Value) -> None:
    """The service info tells name, version and features, with or without parameters."""
    told_info = value_in(binary().done(SERVICE, key("info") + packed(parameters))).json
    assert {"name", "version", "protocolVersion", "features"} <= set(told_info)


@pytest.mark.parametrize("name", ["", "ECHO", "echo ", "nothing", "add", "set", "fetch", "ü"])
def test_unknown_service(binary: Connect, name: str) -> None:
    """A service that is unknown, or that has a function of its own, is refused with -32601."""
    peer = binary()
    assert peer.refused(SERVICE, key(name) + packed(js({})))[:2] == (-32601, "Method not found")


@pytest.mark.parametrize("function", [0, 14, 15, 16, 17, 127, 128, 255])
@pytest.mark.parametrize("payload", [b"", key("x"), bytes(20)], ids=["nothing", "a key", "zeros"])
def test_unknown_function(binary: Connect, function: int, payload: bytes) -> None:
    """An unknown function is answered with -32601, and the connection lives."""
    peer = binary()
    assert peer.refused(function, payload)[:2] == (-32601, "Method not found")
    assert peer.everything() == []


@pytest.mark.parametrize("service", ["passwd", "addUser", "removeUser"])
def test_users_without_a_users_file(binary: Connect, service: str) -> None:
    """Without a users file nobody can be added or changed."""
    peer = binary()
    refusal = peer.refused(SERVICE, key(service) + packed(js({"user": "ann", "password": "x"})))
    assert (refusal[:2], refusal.reason) == (INVALID_PARAMS, "reason")


# Events.


def test_events_do_the_same(binary: Connect) -> None:
    """Any request may be sent as an event: it is done the same way and nothing is answered."""
    peer, watcher = binary(), binary("ws")
    peer.tell(ADD_STATE, key("event/s") + packed(js(1)) + options({"fetchOnly": True}))
    peer.tell(ADD_METHOD, key("event/m"))
    peer.tell(NOTIFY, key("event/s") + packed(text("x")))
    assert peer.everything() == []
    assert watcher.get("event/") == [
        entry_of("add", "event/s", text("x"), fetch_only=True),
        entry_of("add", "event/m", ABSENT),
    ]
    peer.tell(REMOVE_METHOD, key("event/m"))
    peer.tell(REMOVE_STATE, key("event/s"))
    peer.tell(CONFIG, key("named by an event"))
    peer.tell(GET, key(""))
    peer.tell(SERVICE, key("echo") + packed(js([1])))
    assert peer.everything() == []
    assert watcher.get("event/") == []
    assert "named by an event" in [entry.value.json.get("name") for entry in watcher.get("$jet/peers/")]


@pytest.mark.parametrize(
    ("function", "payload"),
    {
        "add of a taken path": (ADD_STATE, key("event/s") + packed(js(1))),
        "remove of nothing": (REMOVE_STATE, key("event/x")),
        "remove of no method": (REMOVE_METHOD, key("event/x")),
        "notify of nothing": (NOTIFY, key("event/x") + packed(js(1))),
        "set of nothing": (SET, key("event/x") + packed(js(1))),
        "call of a state": (CALL, key("event/s") + packed(ABSENT)),
        "wrong rule": (FETCH, key("") + options({"path": {"wrong": 1}})),
        "unfetch of nothing": (UNFETCH, u32(77)),
        "get with a wrong rule": (GET, key("") + options({"sort": 1})),
        "unknown user": (AUTHENTICATE, key("x") + key("y")),
        "encoding": (CONFIG, key("") + options({"encoding": "json"})),
        "unknown service": (SERVICE, key("x") + packed(ABSENT)),
        "unknown function": (99, b""),
        "no layout": (ADD_STATE, b"\xff"),
    }.values(),
)
def test_errors_of_events_are_not_told(binary: Connect, function: int, payload: bytes) -> None:
    """An event that is refused gets no response either."""
    peer = binary()
    peer.add_state("event/s", js(1))
    peer.tell(function, payload)
    assert peer.everything() == []
    assert [match.path for match in peer.get()] == ["event/s"]


@pytest.mark.parametrize("function", [SET, CALL])
def test_set_and_call_as_events(binary: Connect, function: int) -> None:
    """A set or call sent as an event reaches the owner as an event."""
    owner, client = binary("unix"), binary("ws")
    owner.add_state("event/s", js(0))
    owner.add_method("event/m")
    path, value = ("event/s", Value(TEXT, b"x")) if function == SET else ("event/m", ABSENT)
    client.tell(function, key(path) + packed(value))
    assert owner.receive() == bytes([4, function]) + key(path) + packed(value)
    assert owner.everything() == []
    assert client.everything() == []


# Get and limits.


def test_get_rules(binary: Connect) -> None:
    """Get takes a startsWith and every rule of the JSON protocol; a startsWith that is not empty must hold, too."""
    owner = binary()
    for path, value in (("g/b", js(2)), ("g/a", js(10)), ("h/a", js(3)), ("g/t", text("x"))):
        owner.add_state(path, value)
    owner.add_method("g/m")
    for starts_with, named, paths in _GETS:
        assert [match.path for match in owner.get(starts_with, **named)] == paths, (starts_with, named)
    assert owner.refused(GET, key("") + options({"path": {"near": "x"}})).reason == "invalidRule"


_GETS: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
    ("", {}, ["g/b", "g/a", "h/a", "g/t", "g/m"]),
    ("g/", {}, ["g/b", "g/a", "g/t", "g/m"]),
    ("g/b", {}, ["g/b"]),
    ("x", {}, []),
    ("", {"path": {"endsWith": "a"}}, ["g/a", "h/a"]),
    ("g/", {"path": {"endsWith": "a"}}, ["g/a"]),
    ("", {"path": {"equals": "h/a"}}, ["h/a"]),
    ("", {"value": {"lessThan": 5}}, ["g/b", "h/a"]),
    ("", {"value": {"equals": "x"}}, ["g/t"]),
    ("g/", {"value": {"isType": "number"}, "sort": {"byValue": "number", "descending": True}}, ["g/a", "g/b"]),
    ("", {"sort": {"byPath": True, "from": 2, "to": 3}}, ["g/b", "g/m"]),
    ("", {"every": True, "unknown": [1]}, ["g/b", "g/a", "h/a", "g/t", "g/m"]),
)


def test_limits_are_those_of_json_peers(start_daemon: StartDaemon) -> None:
    """Elements, fetches and waiting requests have the limits of JSON peers, with the same error."""
    daemon = start_daemon("--elements-max", "40", "--fetches-max", "2", "--routes-max", "1", "--path-chars-max", "10")
    with connect(daemon) as owner, connect(daemon, "ws") as client:
        owner.add_state("s", js(0))
        client.fetch()
        client.fetch()
        client.start_set("s", js(1))
        owner.asked()
        hits = [
            client.refused(FETCH, key("")),
            client.refused(SET, key("s") + packed(js(2))),
            client.refused(ADD_STATE, key("x" * 11) + packed(js(0))),
        ]
        responses = [owner.ask(ADD_METHOD, key(f"m{i}")) for i in range(40)]
        hits += [refusal_in(response.payload) for response in responses if not response.ok][:1]
        reasons = [json.dumps(hit.data.json) for hit in hits]
        assert {hit[:2] for hit in hits} == {(-32603, "Internal error")}
        assert all(
            name in reason
            for name, reason in zip(
                ("fetches_max", "routes_max", "path_chars_max", "elements_max"), reasons, strict=True
            )
        )
        assert NONE not in {hit.data.type for hit in hits}


def test_the_info_comes_before_anything_is_asked(daemon: Daemon) -> None:
    """The daemon sends its version as soon as a peer has connected, which has sent nothing yet."""
    with socket.create_connection(daemon.address("binary"), timeout=10) as peer:
        assert peer.makefile("rb").read(17) == framed(info(1, 0, 0))
