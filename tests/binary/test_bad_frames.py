"""Messages that no peer should send: an answer or a close with a reason, never a traceback, never harm to others."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from support.binary.client import TRANSPORTS, BinaryPeer, WebSocketStream, connect
from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    AUTHENTICATE,
    CALL,
    CONFIG,
    EVENT,
    FETCH,
    GET,
    JSON,
    NONE,
    NOTIFY,
    OCTETS,
    OTHER,
    PNG,
    REMOVE_METHOD,
    REMOVE_STATE,
    REQUEST,
    RESPONSE,
    SERVICE,
    SET,
    UNFETCH,
    Arrived,
    Refusal,
    Response,
    Value,
    event,
    failure,
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
    u8,
    u32,
)
from support.binary.witness import Witness
from support.daemon import Daemon
from support.rawws import BINARY, CONTINUATION, TEXT, frame

pytestmark = pytest.mark.usefixtures("witness")

INVALID_REQUEST = (-32600, "Invalid Request")
# What a function must be given, and the options it may be given besides.
FULL: dict[str, tuple[int, bytes, bytes]] = {
    "add state": (ADD_STATE, key("bad/ü") + packed(js([1, 2])), options({"fetchOnly": True})),
    "add state of another mime type": (ADD_STATE, key("bad/o") + packed(other("a/b", b"c")), b""),
    "remove state": (REMOVE_STATE, key("bad/s"), b""),
    "set": (SET, key("bad/s") + packed(Value(PNG, b"\x89PNG")), options({"timeout": 2.5})),
    "add method": (ADD_METHOD, key("bad/m"), options({"timeout": 1})),
    "remove method": (REMOVE_METHOD, key("bad/m"), b""),
    "call": (CALL, key("bad/m") + packed(ABSENT), options({"timeout": 1})),
    "notify": (NOTIFY, key("bad/s") + packed(text("")), b""),
    "fetch": (FETCH, key("bad/"), options({"every": True})),
    "unfetch": (UNFETCH, u32(1), b""),
    "get": (GET, key("bad/"), options({"sort": {}})),
    "authenticate": (AUTHENTICATE, key("ann") + key("secret"), b""),
    "config": (CONFIG, key("bad"), options({"encoding": "binary"})),
    "service": (SERVICE, key("echo") + packed(js({})), b""),
}
NO_UTF8 = {
    "stray byte": b"a\xffb",
    "cut sequence": b"a\xe2\x82",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80",
}


@pytest.fixture(scope="module")
def tried() -> Iterator[Daemon]:
    """A daemon for all tests of this file."""
    with Daemon.start("--message-bytes-max", "4000000") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def witnesses() -> Iterator[list[Witness]]:
    """The witness of all tests; a test that has harmed it leaves none."""
    standing: list[Witness] = []
    yield standing
    for witness in standing:
        witness.close()


@pytest.fixture
def witness(tried: Daemon, witnesses: list[Witness]) -> Iterator[None]:
    """Peers whose work must go on, checked after each test; nothing that the test sent may be left."""
    if not witnesses:
        tried.await_empty()
        witnesses.append(Witness(tried))
    yield
    try:
        witnesses[0].check()
    except BaseException:
        witnesses.pop().close()
        raise
    tried.check()


@pytest.fixture
def peer(tried: Daemon) -> Iterator[BinaryPeer]:
    with connect(tried) as connected:
        yield connected


def refusals(peer: BinaryPeer) -> list[tuple[int, Refusal]]:
    """All that the daemon answered until now, which must be errors: ids and what they say."""
    return [_refusal(arrived) for arrived in peer.everything()]


def _refusal(arrived: Arrived) -> tuple[int, Refusal]:
    assert isinstance(arrived, Response), arrived
    assert not arrived.ok
    refusal = refusal_in(arrived.payload)
    assert refusal[:2] != INVALID_REQUEST or refusal.reason == "reason"
    return arrived.id, refusal


def assert_refused(peer: BinaryPeer, *ids: int, code: int = -32600) -> None:
    """Each of these ids was answered with this error, in this order, and nothing else was said."""
    said = refusals(peer)
    assert [(number, refusal.code) for number, refusal in said] == [(number, code) for number in ids]


# Cut off.


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("function", "must", "may"), FULL.values(), ids=FULL)
def test_cut_requests(tried: Daemon, transport: str, function: int, must: bytes, may: bytes) -> None:
    """A request that ends at any byte before its end is answered with its id, if that can be read, and not done."""
    whole = request(0x01020304, function, must + may)
    cuts = [cut for cut in range(len(whole)) if cut != len(request(1, function, must))]
    with connect(tried, transport) as peer:
        peer.send(*(whole[:cut] for cut in cuts))
        assert_refused(peer, *(0 if cut < 5 else 0x01020304 for cut in cuts))


@pytest.mark.parametrize(("function", "must", "may"), FULL.values(), ids=FULL)
def test_cut_events(peer: BinaryPeer, function: int, must: bytes, may: bytes) -> None:
    """An event that ends too early is not answered and not done; only the empty message has no type to know it by."""
    whole = event(function, must + may)
    peer.send(*(whole[:cut] for cut in range(len(whole)) if cut != len(event(function, must))))
    assert_refused(peer, 0)


@pytest.mark.parametrize("answer", [success(1, packed(js([1, 2]))), failure(1, -5, "no", js({"a": 1}))])
def test_cut_responses(peer: BinaryPeer, answer: bytes) -> None:
    """A response that ends too early is not answered."""
    peer.send(*(answer[:cut] for cut in range(1, len(answer))))
    assert peer.everything() == []


@pytest.mark.parametrize("cut", range(1, 13))
def test_cut_info(peer: BinaryPeer, cut: int) -> None:
    """An info that ends too early is answered with id 0."""
    peer.send(info()[:cut])
    assert_refused(peer, 0)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_cut_connections(tried: Daemon, transport: str) -> None:
    """A frame that is cut off by the end of the connection is forgotten."""
    data = framed(request(1, ADD_STATE, key("bad/s") + packed(js(1))))
    for cut in range(len(data)):
        with connect(tried, transport) as peer:
            peer.send_raw(data[:cut])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_empty_messages(tried: Daemon, transport: str) -> None:
    """Each empty message is answered with id 0, and the connection lives."""
    with connect(tried, transport) as peer:
        peer.send(b"", b"", b"")
        assert_refused(peer, 0, 0, 0)


# Too long, and lengths that do not fit.


@pytest.mark.parametrize("more", [b"\x00", b"\x01", b"\xff" * 7, packed(js({}))], ids=["0", "1", "ff", "a value"])
@pytest.mark.parametrize(("function", "must", "may"), FULL.values(), ids=FULL)
def test_bytes_too_many(peer: BinaryPeer, function: int, must: bytes, may: bytes, more: bytes) -> None:
    """Bytes behind the last part are an error, as a request and as an event, which is not answered."""
    peer.send(request(6, function, must + may + more), event(function, must + may + more))
    if function == NOTIFY and more == packed(js({})):
        assert_refused(peer, 6, code=-32602)  # these are options, but the state is not there
    elif may or more != packed(js({})) or function in (REMOVE_STATE, REMOVE_METHOD, UNFETCH, AUTHENTICATE, SERVICE):
        assert_refused(peer, 6)
    else:
        peer.response(6)
        peer.done(REMOVE_STATE, key("bad/o"))


@pytest.mark.parametrize("more", [b"\x00", packed(js(1))])
def test_info_too_long(peer: BinaryPeer, more: bytes) -> None:
    """Bytes behind an info are an error."""
    peer.send(info() + more)
    assert_refused(peer, 0)


WRONG_LENGTHS: dict[str, tuple[int, bytes]] = {
    "key longer than the message": (ADD_METHOD, struct.pack("<H", 10) + b"bad/m"),
    "longest key": (ADD_METHOD, b"\xff\xff" + b"bad/m"),
    "key one shorter": (ADD_METHOD, struct.pack("<H", 4) + b"bad/m"),
    "big-endian key": (ADD_METHOD, struct.pack(">H", 5) + b"bad/m"),
    "value one longer": (ADD_STATE, key("bad/s") + struct.pack("<BI", JSON, 2) + b"1"),
    "value one shorter": (ADD_STATE, key("bad/s") + struct.pack("<BI", JSON, 1) + b"12"),
    "longest value": (ADD_STATE, key("bad/s") + struct.pack("<BI", JSON, 0xFFFFFFFF) + b"1"),
    "value of 2 GiB": (ADD_STATE, key("bad/s") + struct.pack("<BI", OCTETS, 0x80000000) + b"1"),
    "big-endian value": (ADD_STATE, key("bad/s") + struct.pack(">BI", JSON, 1) + b"1"),
    "no value with a length": (CALL, key("bad/m") + struct.pack("<BI", NONE, 1) + b"1"),
    "no value with a length that is too long": (CALL, key("bad/m") + struct.pack("<BI", NONE, 1)),
    "second key longer": (AUTHENTICATE, key("ann") + struct.pack("<H", 9) + b"secret"),
    "options one longer": (FETCH, key("") + struct.pack("<BI", JSON, 3) + b"{}"),
    "other mime type without a key": (ADD_STATE, key("bad/s") + packed(Value(OTHER, b""))),
    "other mime type with half a length": (ADD_STATE, key("bad/s") + packed(Value(OTHER, b"\x01"))),
    "other mime type whose key is longer": (ADD_STATE, key("bad/s") + packed(Value(OTHER, b"\x04\x00a/b"))),
}


@pytest.mark.parametrize(("function", "payload"), WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
def test_wrong_lengths(peer: BinaryPeer, function: int, payload: bytes) -> None:
    """A length that does not fit its message is answered, nothing is done, and the connection lives."""
    peer.send(request(6, function, payload), event(function, payload))
    assert_refused(peer, 6)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("excess", [1, 1000])
def test_overlong_message(limited: Daemon, transport: str, excess: int) -> None:
    """A message of the greatest size passes; a longer one is answered with id 0 and the connection is closed."""
    empty = len(request(1, SERVICE, key("echo") + packed(js(b'""'))))
    for size in (2000, 2000 + excess):
        document = b'"' + b"x" * (size - empty) + b'"'
        message = request(1, SERVICE, key("echo") + packed(js(document)))
        assert len(message) == size
        with connect(limited, transport) as peer:
            peer.send(message)
            if size == 2000:
                assert peer.receive() == success(1, packed(js(document)))
                continue
            before, closed = peer.await_closed()
            assert [number for number, _ in map(_refusal, before)] == ([0] if before else [])
            assert before or closed.code == 1009
            assert before or transport == "ws"
    assert limited.limit_hits("message_bytes_max") >= 1


@pytest.fixture(scope="module")
def limited() -> Iterator[Daemon]:
    """A daemon that allows messages of 2000 bytes."""
    with Daemon.start("--message-bytes-max", "2000") as daemon:
        yield daemon


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("length", [4_000_001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_overlong_lengths(tried: Daemon, transport: str, length: int) -> None:
    """A length above the limit is answered and closes before its bytes are waited for."""
    with connect(tried, transport) as peer:
        peer.send_raw(u32(length))
        ((number, refusal),) = map(_refusal, peer.await_closed()[0])
        assert number == 0
        assert refusal.data.json


def test_messages_before_an_overlong_one_count(tried: Daemon) -> None:
    """Messages before an over-long one in the same chunk are handled and answered first."""
    with connect(tried) as peer:
        peer.send_raw(framed(request(1, SERVICE, key("echo") + packed(js([1])))) + u32(0xFFFFFFFF))
        before = peer.await_closed()[0]
        assert before[0] == Response(1, True, packed(js([1])))
        assert [number for number, _ in map(_refusal, before[1:])] == [0]


# What is unknown.


@pytest.mark.parametrize("kind", [0, 5, 9, 0x10, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("rest", [b"", bytes(4), request(7, GET, key(""))[1:]], ids=["alone", "zeros", "a request"])
def test_unknown_type(peer: BinaryPeer, kind: int, rest: bytes) -> None:
    """A message of an unknown type is answered with id 0 and its number in the reason."""
    peer.send(u8(kind) + rest)
    ((number, refusal),) = refusals(peer)
    assert (number, refusal[:2]) == (0, INVALID_REQUEST)
    assert refusal.data.json == {"reason": f"{kind} is no message type"}


@pytest.mark.parametrize("kind", [21, 22, 100, 128, 254])
@pytest.mark.parametrize(
    ("function", "path"),
    [(ADD_STATE, "bad/s"), (SET, "witness/s"), (NOTIFY, "witness/s"), (CALL, "witness/s"), (SERVICE, "echo")],
)
def test_unknown_value_type(peer: BinaryPeer, function: int, path: str, kind: int) -> None:
    """A value type without a number is refused, and never passed on."""
    payload = key(path) + packed(Value(kind, b"1"))
    peer.send(request(6, function, payload), event(function, payload))
    assert_refused(peer, 6)


WRONG_OPTIONS = {
    "text": packed(text("{}")),
    "octets": packed(Value(OCTETS, b"{}")),
    "other": packed(other("a/b", b"{}")),
    "unknown type": packed(Value(99, b"{}")),
    "empty": packed(js(b"")),
    "array": packed(js([])),
    "number": packed(js(1)),
    "null": packed(js(None)),
    "cut": packed(js(b'{"a":')),
    "no JSON": packed(js(b"{a:1}")),
    "NaN": packed(js(b'{"a":NaN}')),
    "two texts": packed(js(b"{}{}")),
    "no UTF-8": packed(js(b'{"\xff":1}')),
    "a member twice": packed(js(b'{"timeout":1,"timeout":2}')),
    "deep": packed(js(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
@pytest.mark.parametrize("name", ["add state", "set", "add method", "call", "fetch", "get", "config"])
def test_wrong_options(peer: BinaryPeer, name: str, wrong: bytes) -> None:
    """Options that are no JSON object are refused, and nothing is done."""
    function, must, _ = FULL[name]
    peer.send(request(6, function, must + wrong), event(function, must + wrong))
    ((number, refusal),) = refusals(peer)
    assert number == 6
    assert refusal.code == -32600 or (refusal.code == -32602 and b"timeout" in wrong)


# Text that is none.


@pytest.mark.parametrize("wrong", NO_UTF8.values(), ids=NO_UTF8)
@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        (ADD_STATE, b"", packed(js(1))),
        (ADD_METHOD, b"", b""),
        (REMOVE_STATE, b"", b""),
        (SET, b"", packed(js(1))),
        (CALL, b"", packed(ABSENT)),
        (NOTIFY, b"", packed(js(1))),
        (FETCH, b"", b""),
        (GET, b"", b""),
        (AUTHENTICATE, b"", key("secret")),
        (AUTHENTICATE, key("ann"), b""),
        (CONFIG, b"", b""),
        (SERVICE, b"", packed(js({}))),
        (ADD_STATE, key("bad/s") + b"\xff" + u32(0), b""),
    ],
)
def test_no_utf8(peer: BinaryPeer, function: int, before: bytes, after: bytes, wrong: bytes) -> None:
    """A key that is not UTF-8 is refused wherever it is, and the connection lives."""
    if before.endswith(b"\xff" + u32(0)):
        payload = before[: -len(b"\xff" + u32(0))] + packed(Value(OTHER, key(wrong) + b"x"))
    else:
        payload = before + key(wrong) + after
    peer.send(request(6, function, payload), event(function, payload))
    assert_refused(peer, 6)


# Ids and responses.


@pytest.mark.parametrize(("function", "must", "may"), FULL.values(), ids=FULL)
def test_id_0(peer: BinaryPeer, function: int, must: bytes, may: bytes) -> None:
    """Id 0 is never a request: it is answered with id 0 and not done."""
    peer.send(request(0, function, must + may))
    assert_refused(peer, 0)


@pytest.mark.parametrize("number", [0, 1, 77, 0xFFFFFFFF])
def test_responses_nobody_waits_for(peer: BinaryPeer, number: int) -> None:
    """A response that nobody waits for is ignored, as success and as error."""
    peer.send(success(number), success(number, packed(js(1))), failure(number, 1, "no"))
    assert peer.everything() == []


WRONG_ANSWERS = {
    "marker 2": struct.pack("<B", 2),
    "no marker": b"",
    "unknown value type": b"\x00" + packed(Value(77, b"1")),
    "value too long": b"\x00" + struct.pack("<BI", JSON, 9) + b"1",
    "bytes behind the value": b"\x00" + packed(js(1)) + b"\x00",
    "error without code": b"\x01\x01",
    "error without data": b"\x01" + struct.pack("<i", 1) + key("m"),
    "error message that is no UTF-8": b"\x01" + struct.pack("<i", 1) + key(b"\xff") + packed(ABSENT),
    "bytes behind the error": failure(1, 1, "m")[5:] + b"\x00",
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_wrong_answers_of_owners(tried: Daemon, peer: BinaryPeer, wrong: bytes) -> None:
    """An owner's response that cannot be read is not passed on: the requester gets an error, both connections live."""
    with connect(tried, "ws") as client:
        peer.add_state("bad/s", js(0))
        number = client.start_set("bad/s", js(1), timeout=0.2)
        asked = peer.asked()
        peer.send(struct.pack("<BI", RESPONSE, asked.id) + wrong)
        response = client.response(number)
        assert not response.ok
        assert refusal_in(response.payload).code in (-32001, -32600, -32603)
        assert peer.everything() == []
        assert client.everything() == []


def test_answer_of_somebody_else(tried: Daemon, peer: BinaryPeer) -> None:
    """Nobody but the owner can answer a routed request."""
    with connect(tried) as client, connect(tried) as thief:
        peer.add_state("bad/s", js(0))
        number = client.start_set("bad/s", js(1))
        asked = peer.asked()
        thief.send(*(success(i, packed(js("stolen"))) for i in range(1, 50)), success(asked.id or 0))
        assert thief.everything() == []
        peer.succeed(asked.id, js("mine"))
        assert client.response(number).payload == packed(js("mine"))


# Info.


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("major", [0, 2, 0x01000000, 0xFFFFFFFF])
def test_another_major(tried: Daemon, transport: str, major: int) -> None:
    """A peer of another major version is answered with id 0 and closed; what it sends after that is not done."""
    with connect(tried, transport) as peer:
        peer.send(info(major), request(1, ADD_STATE, key("bad/s") + packed(js(1))))
        before, _ = peer.await_closed()
        assert [number for number, _ in map(_refusal, before)] == [0]


@pytest.mark.parametrize("major", [1, 2])
def test_late_info(peer: BinaryPeer, major: int) -> None:
    """An info that is not the first message is answered with id 0, and the connection lives."""
    peer.barrier()
    peer.send(info(major))
    assert_refused(peer, 0)


def test_info_twice(peer: BinaryPeer) -> None:
    """The second info is one too many."""
    peer.send(info(), info())
    assert_refused(peer, 0)


# WebSocket.


def websocket(daemon: Daemon) -> tuple[BinaryPeer, WebSocketStream]:
    peer = connect(daemon, "ws")
    assert isinstance(peer.line, WebSocketStream)
    return peer, peer.line


ECHO = framed(request(1, SERVICE, key("echo") + packed(js([1]))))
ECHOED = Response(1, True, packed(js([1])))


@pytest.mark.parametrize("payload", [b'{"id":1,"method":"info"}', b"", b"x"], ids=["JSON", "empty", "x"])
def test_websocket_text(tried: Daemon, payload: bytes) -> None:
    """A WebSocket text message closes with code 1003."""
    peer, line = websocket(tried)
    with peer:
        line.raw.send(frame(payload, TEXT))
        assert peer.await_closed()[1].code == 1003


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 10, -1])
def test_frame_over_two_websocket_messages(tried: Daemon, cut: int) -> None:
    """A frame that spans two WebSocket messages closes with code 1002, and is not done."""
    add = framed(request(1, ADD_STATE, key("bad/s") + packed(js(1))))
    peer, line = websocket(tried)
    with peer:
        line.raw.send(frame(add[:cut], BINARY) + frame(add[cut:], BINARY))
        assert peer.await_closed()[1].code == 1002


def test_whole_frame_and_a_half(tried: Daemon) -> None:
    """A whole frame and a half in one WebSocket message closes with code 1002."""
    peer, line = websocket(tried)
    with peer:
        line.raw.send(frame(ECHO + ECHO[:7], BINARY))
        before, closed = peer.await_closed()
        assert closed.code == 1002
        assert before in ([], [ECHOED])


def test_frames_in_one_websocket_message(tried: Daemon) -> None:
    """A WebSocket message holds one or more whole frames, also in fragments."""
    peer, line = websocket(tried)
    with peer:
        line.raw.send(frame(ECHO * 3, BINARY))
        line.raw.send(frame(ECHO[:5], BINARY, fin=False) + frame(ECHO[5:] + ECHO, CONTINUATION))
        assert [peer.response(1) for _ in range(5)] == [ECHOED] * 5
        assert peer.everything() == []


def test_overlong_websocket_message(limited: Daemon) -> None:
    """Frames that together are longer than the longest message and its length close with code 1009."""
    peer, line = websocket(limited)
    with peer:
        message = request(1, SERVICE, key("echo") + packed(js(b'"' + b"x" * 900 + b'"')))
        line.raw.send(frame(framed(message, message), BINARY))
        assert [peer.response(1).ok for _ in range(2)] == [True, True]
        line.raw.send(frame(framed(message, message, message), BINARY))
        before, closed = peer.await_closed()
        assert (before, closed.code) == ([], 1009)


# The wrong port.


def test_json_on_the_binary_port(tried: Daemon) -> None:
    """A JSON peer that comes to the binary port is answered or closed; its length is read as far too long."""
    for data in (
        struct.pack(">I", 40) + b'{"id":1,"method":"info","params":{}}    ',
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        with connect(tried) as peer:
            peer.send_raw(data)
            assert [number for number, _ in map(_refusal, peer.await_closed()[0])] == [0]


def test_binary_on_the_json_port(tried: Daemon) -> None:
    """A binary peer that comes to the JSON port does no harm."""
    with tried.connect() as wire:
        wire.send_raw(framed(info(), request(1, GET, key(""))))
        wire.await_closed()


def test_many_bad_messages_in_a_row(peer: BinaryPeer) -> None:
    """A thousand bad messages are each answered, in order, and good ones between them are done."""
    bad = [
        b"",
        u8(9),
        request(0, GET),
        request(5, 99),
        request(6, ADD_STATE, b"\xff"),
        event(99),
        u8(EVENT),
        u8(REQUEST),
    ]
    peer.send(*(message for _ in range(150) for message in [*bad, request(8, SERVICE, key("echo") + packed(js([1])))]))
    said = peer.everything()
    assert all(isinstance(one, Response) for one in said)
    assert [one.id for one in said if isinstance(one, Response)] == [0, 0, 0, 5, 6, 0, 8] * 150
