"""Bytes that no peer should send: a clear error or a close, never a traceback, never harm to others.

Every test has a witness on the same daemon, whose work must go on; its frames must all be JSON.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator

import pytest

from support.daemon import Daemon
from support.rawws import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, RawWebSocket, frame, upgrade
from support.strict import Witness, strict_json
from support.wire import LENGTH, Closed, TcpWire, UnixWire, Wire

pytestmark = pytest.mark.usefixtures("witness")

ECHO = '{"id":1,"method":"echo","params":{"x":1}}'
ECHOED = {"id": 1, "result": {"x": 1}}
VALID = [
    '{"id":1,"method":"add","params":{"path":"fuzz/a","value":1}}',
    '{"id":2,"method":"add","params":{"path":"fuzz/m","access":{"fetchGroups":["g"]}}}',
    '{"id":3,"method":"change","params":{"path":"fuzz/a","value":{"x":[1,2.5,"\\u00fc ü",null,true]}}}',
    '{"id":4,"method":"set","params":{"path":"fuzz/a","value":2,"timeout":0.1,"valueAsResult":true}}',
    '{"id":5,"method":"call","params":{"path":"fuzz/m","args":[1,2],"timeout":0.1}}',
    '{"id":6,"method":"fetch","params":{"id":"f","path":{"startsWith":"fuzz/"},"value":{"lessThan":10}}}',
    '{"id":7,"method":"fetch","params":{"id":7,"path":{"containsAllOf":["f","z"]},"sort":{"byValue":"number"}}}',
    '{"id":8,"method":"fetch","params":["all","^fuzz/%a+$"]}',
    '{"id":9,"method":"add","params":["fuzz/b/c",{"type":"state","value":1}]}',
    '{"id":10,"method":"post","params":{"path":"fuzz/b/c","event":"change","data":{"value":2}}}',
    '{"id":11,"jsonrpc":"2.0","method":"get","params":{"valueField":{"x[0].y":{"isType":"number"}}}}',
    '{"id":"12","method":"info","params":{}}',
    '{"id":13,"method":"config","params":{"name":"fuzz","debug":false}}',
    '{"id":14,"method":"authenticate","params":{"user":"u","password":"p"}}',
    '{"id":15,"method":"unfetch","params":{"id":"f"}}',
    '{"id":16,"method":"remove","params":{"path":"fuzz/a"}}',
    '[{"id":17,"method":"echo","params":{}},{"id":"r1","result":true},{"id":"r2","error":{"code":1}}]',
]
NO_JSON = {
    "NaN": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":NaN}}',
    "Infinity": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":[Infinity]}}',
    "-Infinity": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":{"a":-Infinity}}}',
    "nan as id": b'{"id":NaN,"method":"add","params":{"path":"fuzz/x","value":1}}',
    "leading zero": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":01}}',
    "trailing comma": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":[1,]}}',
    "single quotes": b"{'id':1,'method':'add','params':{'path':'fuzz/x','value':1}}",
    "bare word": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":undefined}}',
    "control character in a string": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"a\x01b"}}',
    "raw newline in a string": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"a\nb"}}',
    "bad escape": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\\x41"}}',
    "bad unicode escape": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\\u12g4"}}',
    "cut off": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}',
    "two texts": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}}{}',
    "comment": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1/**/}}',
    "nul at the end": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}}\x00',
}
NO_UTF8 = {
    "stray byte in a value": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\xff"}}',
    "cut sequence in a value": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\xe2\x82"}}',
    "overlong sequence": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\xc0\xaf"}}',
    "surrogate in UTF-8": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\xed\xa0\x80"}}',
    "beyond Unicode": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":"\xf4\x90\x80\x80"}}',
    "stray byte in a path": b'{"id":1,"method":"add","params":{"path":"fuzz/\x80","value":1}}',
    "stray byte in a nested key": b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":{"a":{"\xfe":1}}}}',
    "stray byte in the id": b'{"id":"\xff","method":"add","params":{"path":"fuzz/x","value":1}}',
    "UTF-16": '{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}}'.encode("utf-16"),
}
NO_VALUES = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "hexadecimal": b"0x10",
    "plus": b"+1",
    "no digit before the point": b".5",
    "no digit after the point": b"1.",
    "no exponent": b"1e",
    "minus alone": b"-",
    "leading zero": b"-012",
    "two values": b"1 2",
    "half a word": b"tru",
    "capital word": b"True",
    "no comma": b"[1 2]",
    "no colon": b'{"a" 1}',
    "no key": b"{1:2}",
    "no value": b'{"a":}',
    "trailing comma": b'{"a":1,}',
    "control character": b'"\x1f"',
    "bad escape": b'"\\q"',
    "half an escape": b'"\\u12"',
    "stray byte": b'"\xff"',
    "cut sequence": b'["\xe2\x82"]',
    "overlong sequence": b'{"a":"\xc0\xaf"}',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "stray byte in a key": b'{"\xfe":1}',
    "byte order mark": b"\xef\xbb\xbf1",
    "no-break space": b"\xc2\xa01",
    "form feed": b"\x0c1",
}
DEEP = {
    "open arrays": "[" * 100_000,
    "open objects": '{"a":' * 100_000,
    "closed arrays": "[" * 100_000 + "]" * 100_000,
    "a value": '{"id":1,"method":"add","params":{"path":"fuzz/x","value":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "an object value": '{"id":1,"method":"add","params":{"path":"fuzz/x","value":'
    + '{"a":' * 50_000
    + "1"
    + "}" * 50_000
    + "}}",
    "args": '{"id":1,"method":"call","params":{"path":"fuzz/x","args":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "a value rule": '{"id":1,"method":"fetch","params":{"id":"f","value":{"equals":'
    + "[" * 100_000
    + "]" * 100_000
    + "}}}",
    "an id": '{"id":' + "[" * 100_000 + "]" * 100_000 + ',"method":"echo","params":{}}',
    "a result": '{"id":"r1","result":' + "[" * 100_000 + "]" * 100_000 + "}",
    "a batch": "[" + '[{"id":1,"method":"echo","params":{}}' * 50_000 + "]" * 50_000 + "]",
}


@pytest.fixture(scope="module", params=["2000", "50"], ids=["turns as usual", "short turns"])
def fuzzed(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon for all tests of this file, with a moderate limit on messages; it does not ping between two answers.

    With short turns messages wait for their next turn, as they do on a busy machine.
    """
    limits = ("--message-bytes-max", "4000000", "--turn-us-max", request.param)
    with Daemon.start(*limits, "--ws-ping-s", "0") as daemon:
        yield daemon


@pytest.fixture
def witness(fuzzed: Daemon) -> Iterator[Witness]:
    """Peers whose work must go on, checked after each test; what earlier tests added is gone."""
    fuzzed.await_empty()
    witness = Witness(fuzzed)
    try:
        witness.check()
        yield witness
        witness.check()
    finally:
        witness.close()
    fuzzed.check()


def attack(daemon: Daemon, data: bytes, transport: str = "tcp") -> list[str]:
    """Send bytes, then nothing more; all frames until the daemon closes, each of them JSON."""
    wire = daemon.connect(transport)
    assert isinstance(wire, TcpWire | UnixWire)
    with wire:
        try:
            wire.send_raw(data)
            wire.shutdown_write()
        except OSError:
            return []
        frames = wire.await_closed()
    for text in frames:
        strict_json(text)
    return frames


def framed(*payloads: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(payload)) + payload for payload in payloads)


def assert_nothing_added(daemon: Daemon) -> None:
    with daemon.connect() as other:
        assert other.result("get", {"path": {"startsWith": "fuzz/"}}) == []


def answer_or_close(wire: Wire) -> dict[str, object] | None:
    """The next frame that is no event, or None if the daemon closed."""
    try:
        while True:
            message = strict_json(wire.receive_text())
            if "method" not in message:
                assert isinstance(message, dict)
                return message
    except Closed:
        return None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_random_bytes(fuzzed: Daemon, transport: str, seed: int) -> None:
    """Random bytes end in an error or a close."""
    rng = random.Random(f"{transport} {seed}")
    attack(fuzzed, rng.randbytes(rng.randrange(1, 400)), transport)


@pytest.mark.parametrize("seed", range(10))
def test_random_frames(fuzzed: Daemon, seed: int) -> None:
    """Frames with random contents are each answered, and the connection lives."""
    rng = random.Random(seed)
    payloads = [rng.randbytes(rng.randrange(1, 60)) for _ in range(30)]
    frames = attack(fuzzed, framed(*payloads, ECHO.encode()))
    assert strict_json(frames[-1]) == ECHOED


@pytest.mark.parametrize("seed", range(25))
def test_mutated_frames(fuzzed: Daemon, seed: int) -> None:
    """Valid frames with wrong bytes in them do no harm, and the connection lives."""
    rng = random.Random(seed)
    payloads = [mutated(rng, rng.choice(VALID).encode()) for _ in range(40)]
    frames = attack(fuzzed, framed(*payloads, ECHO.encode()))
    assert ECHOED in [strict_json(text) for text in frames]


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(1, 5))
            case 3:
                del changed[at : at + rng.randrange(1, 6)]
            case 4:
                changed[at:at] = changed[at : at + rng.randrange(1, 30)]
            case 5:
                changed[at:at] = rng.choice(
                    [b"[", b"{", b'"', b"null", b"-1", b"1e999", b"\\", b"[]", b"{}", b"9" * 40]
                )
        if not changed:
            changed += b"{"
    return bytes(changed)


@pytest.mark.parametrize("seed", range(10))
def test_mutated_structure(fuzzed: Daemon, seed: int) -> None:
    """Valid frames with members of wrong types are each answered, and the connection lives."""
    rng = random.Random(seed)
    payloads = [json.dumps(replaced(rng, json.loads(rng.choice(VALID)))).encode() for _ in range(60)]
    frames = attack(fuzzed, framed(*payloads, ECHO.encode()))
    assert ECHOED in [strict_json(text) for text in frames]


def replaced(rng: random.Random, message: object) -> object:
    """The same message with some members replaced by anything."""
    junk: list[object] = [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        "x",
        "\0",
        "fuzz/a",
        [],
        {},
        [[]],
        {"": {}},
        ["x", 1],
        "\ud800",
    ]
    if rng.random() < 0.12:
        return rng.choice(junk)
    if isinstance(message, dict):
        return {key: replaced(rng, value) for key, value in message.items() if rng.random() > 0.03}
    if isinstance(message, list):
        return [replaced(rng, value) for value in message]
    return message


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
@pytest.mark.parametrize("payload", NO_JSON.values(), ids=NO_JSON)
def test_no_json(fuzzed: Daemon, transport: str, payload: bytes) -> None:
    """A frame that is not JSON is a parse error, adds nothing, and the connection lives."""
    with fuzzed.connect(transport) as wire:
        wire.send_text(payload.decode())
        error = wire.receive()["error"]
        assert (error["code"], error["message"]) == (-32700, "Parse error")
        assert wire.result("get", {"path": {"startsWith": "fuzz/"}}) == []


@pytest.mark.parametrize("bad", NO_VALUES.values(), ids=NO_VALUES)
def test_no_json_is_passed_on(fuzzed: Daemon, bad: bytes) -> None:
    """Invalid JSON or UTF-8 reaches no other peer, whichever service it is sent to."""
    with fuzzed.connect() as owner, fuzzed.connect() as other:
        assert owner.result("add", {"path": "fuzz/s", "value": 0}) is True
        assert owner.result("add", {"path": "fuzz/m"}) is True
        assert other.result("fetch", {"id": 1, "path": {"startsWith": "fuzz/"}}) is True
        assert len(other.receive_all()) == 2
        other.send({"id": "routed", "method": "call", "params": {"path": "fuzz/m"}})
        route_id = json.dumps(owner.receive()["id"]).encode()
        for wire, template in (
            (owner, b'{"method":"change","params":{"path":"fuzz/s","value":%s}}'),
            (owner, b'{"params":{"value":%s,"path":"fuzz/s"},"method":"change"}'),
            (owner, b'{"id":1,"method":"change","params":{"path":"fuzz/s","value":{"a":[%s]}}}'),
            (owner, b'[{"method":"change","params":{"path":"fuzz/s","value":%s}}]'),
            (owner, b'{"method":"post","params":{"path":"fuzz/s","event":"change","data":{"value":%s}}}'),
            (owner, b'{"method":"add","params":["fuzz/t",{"type":"state","value":%s}]}'),
            (owner, b'{"id":' + route_id + b',"result":%s}'),
            (owner, b'{"id":' + route_id + b',"error":{"code":1,"message":"m","data":[%s]}}'),
            (other, b'{"id":2,"method":"set","params":{"path":"fuzz/s","value":%s}}'),
            (other, b'{"method":"call","params":{"path":"fuzz/m","args":[%s]}}'),
            (other, b'{"method":"call","params":["fuzz/m",%s]}'),
        ):
            wire.send_raw(framed(template % bad))
            error = wire.receive()["error"]
            assert error["code"] == -32700, template
        assert owner.receive_all() == []
        assert other.receive_all() == []


@pytest.mark.parametrize("payload", NO_UTF8.values(), ids=NO_UTF8)
def test_no_utf8(fuzzed: Daemon, payload: bytes) -> None:
    """A frame that is not UTF-8 is refused or ends the connection, and adds nothing."""
    with fuzzed.connect() as wire:
        wire.send_raw(framed(payload))
        answer = answer_or_close(wire)
        assert answer is None or "error" in answer
        assert_nothing_added(fuzzed)


@pytest.mark.parametrize("payload", NO_UTF8.values(), ids=NO_UTF8)
def test_no_utf8_over_websocket(fuzzed: Daemon, payload: bytes) -> None:
    """A text message that is not UTF-8 is refused or ends the connection, and adds nothing."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    raw.send(frame(payload))
    answer = raw.read()
    assert answer is None or answer.opcode == CLOSE or "error" in strict_json(answer.payload.decode())
    assert_nothing_added(fuzzed)
    raw.close()


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"id":2,"method":"echo","params":{}}',
        '{"id":1,"method":"echo","method":"add","params":{"path":"fuzz/x","value":1}}',
        '{"id":1,"method":"add","params":{"path":"fuzz/x","path":"fuzz/y","value":1,"value":2}}',
        '{"id":1,"method":"add","params":{"path":"fuzz/x"},"params":{"path":"fuzz/y"}}',
        '{"id":1,"method":"add","params":{"path":"fuzz/x","value":{"a":1,"a":2}}}',
        '{"id":1,"method":"fetch","params":{"id":"f","id":"g","path":{"equals":"a","equals":"b"}}}',
        '{"id":1,"method":"echo","params":{},"result":1,"error":2}',
    ],
)
def test_duplicate_keys(fuzzed: Daemon, text: str) -> None:
    """A frame with a key twice gets one answer, whichever counts, and the connection lives."""
    with fuzzed.connect() as wire:
        wire.send_text(text)
        wire.send_text(ECHO.replace('"id":1', '"id":"after"'))
        frames = [wire.receive()]
        while frames[-1].get("id") != "after":
            frames.append(wire.receive())
        assert len([message for message in frames if "method" not in message]) <= 2


@pytest.mark.parametrize(
    "value",
    ["1e400", "-1e400", "1e-400", "9" * 5000, "0." + "1" * 5000, '"\\ud800"', '"\\udc00\\ud800"', '{"\\ud800":1}'],
)
def test_extreme_values(fuzzed: Daemon, value: str) -> None:
    """A value at the edge of JSON is passed on as JSON or refused, under a value rule and a sort too."""
    with fuzzed.connect() as wire, fuzzed.connect() as fetcher:
        fetcher.notify("fetch", {"id": "v", "value": {"lessThan": 10}})
        fetcher.notify("fetch", {"id": "s", "sort": {"byValue": "number"}})
        fetcher.notify("fetch", {"id": "t", "sort": {"byValue": "string"}})
        fetcher.barrier()
        wire.send_text('{"id":1,"method":"add","params":{"path":"fuzz/x","value":' + value + "}}")
        answer = answer_or_close(wire)
        assert answer is not None
        fetcher.barrier()
        for text in fetcher.inbox:
            strict_json(text)


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting(fuzzed: Daemon, transport: str, text: str) -> None:
    """A hundred thousand brackets end in an error or a close, wherever they are."""
    with fuzzed.connect(transport) as wire:
        wire.send_text(text)
        wire.send_text(ECHO.replace('"id":1', '"id":"after"'))
        answer = answer_or_close(wire)
        assert answer is None or "error" in answer or answer["id"] == "after"
        assert_nothing_added(fuzzed)


@pytest.mark.parametrize(
    "text",
    [
        "[" + ",".join(["1"] * 300_000) + "]",
        "[" + ",".join(["{}"] * 300_000) + "]",
        "[" + ",".join(["[]"] * 300_000) + "]",
        "[" + ",".join([ECHO] * 60_000) + "]",
        "[" + ",".join(['{"method":"change","params":{"path":"x","value":1}}'] * 60_000) + "]",
    ],
    ids=["numbers", "objects", "arrays", "requests", "notifications"],
)
def test_huge_batches(fuzzed: Daemon, witness: Witness, text: str) -> None:
    """A huge batch is refused or handled, and others are served."""
    frames = attack(fuzzed, framed(text.encode()))
    assert all("error" in (message := strict_json(text)) or message == ECHOED for text in frames)
    witness.check()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_zero_length_frame(fuzzed: Daemon, transport: str) -> None:
    """A frame of length zero is an error or a close."""
    with fuzzed.connect(transport) as wire:
        wire.send_raw(LENGTH.pack(0))
        answer = answer_or_close(wire)
        assert answer is None or "error" in answer
    frames = attack(fuzzed, LENGTH.pack(0) * 1000, transport)
    assert all("error" in strict_json(text) for text in frames)


@pytest.mark.parametrize("length", [4_000_001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_overlong_frame(fuzzed: Daemon, transport: str, length: int) -> None:
    """A length above the limit closes the connection before its bytes are waited for."""
    with fuzzed.connect(transport) as wire:
        wire.send_raw(struct.pack(">I", length))
        for text in wire.await_closed():
            assert "error" in strict_json(text)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 20, 40])
def test_half_frames(fuzzed: Daemon, cut: int) -> None:
    """A frame that is cut off by the end of the connection is forgotten."""
    add = framed(b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}}')
    assert attack(fuzzed, add[:cut]) == []
    assert attack(fuzzed, framed(ECHO.encode()) + add[:cut]) == ['{"id":1,"result":{"x":1}}']


@pytest.mark.parametrize("wrong_by", [-30, -5, -1, 1, 5, 30])
def test_wrong_lengths(fuzzed: Daemon, wrong_by: int) -> None:
    """A length that does not fit its text ends in errors or a close, never in something executed twice."""
    text = b'{"id":1,"method":"add","params":{"path":"fuzz/x","value":1}}'
    frames = attack(fuzzed, LENGTH.pack(len(text) + wrong_by) + text + framed(ECHO.encode()))
    assert all("error" in strict_json(text) for text in frames)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_frames_in_pieces(fuzzed: Daemon, transport: str) -> None:
    """A frame may come byte by byte, and many frames at once."""
    with fuzzed.connect(transport) as wire:
        for byte in framed(ECHO.encode()):
            wire.send_raw(bytes([byte]))
        assert wire.receive() == ECHOED
        wire.send_raw(framed(*[ECHO.encode()] * 500) + b"\0\0")
        assert [wire.receive() for _ in range(500)] == [ECHOED] * 500
        wire.send_raw(framed(ECHO.encode())[2:])
        assert wire.receive() == ECHOED


WRONG_UPGRADES = {
    "garbage": b"\x00\x01\x02\xff\xfe" * 40 + b"\r\n\r\n",
    "a jet frame": framed(ECHO.encode()),
    "empty lines": b"\r\n\r\n\r\n\r\n",
    "no headers": b"GET / HTTP/1.1\r\n\r\n",
    "bad key": upgrade(Sec_WebSocket_Key="short"),
    "key of wrong characters": upgrade(Sec_WebSocket_Key="!!!!!!!!!!!!!!!!!!!!!!=="),
    "no key": upgrade(Sec_WebSocket_Key=None),
    "wrong version": upgrade(Sec_WebSocket_Version="12"),
    "no version": upgrade(Sec_WebSocket_Version=None),
    "no upgrade header": upgrade(Upgrade=None),
    "other upgrade": upgrade(Upgrade="h2c"),
    "no connection header": upgrade(Connection=None),
    "POST": upgrade(line="POST / HTTP/1.1"),
    "HTTP/1.0": upgrade(line="GET / HTTP/1.0"),
    "HTTP/9": upgrade(line="GET / HTTP/9.9"),
    "no path": upgrade(line="GET HTTP/1.1"),
    "spaces": upgrade(line="   "),
    "header without colon": upgrade().replace(b"Host: 127.0.0.1", b"Host"),
    "folded header": upgrade().replace(b"Host:", b"Host: a\r\n b\r\nX:"),
    "nul in a header": upgrade(Host="a\0b"),
    "long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    "long header": upgrade(X_Long="a" * 200_000),
    "many headers": upgrade().replace(b"\r\n\r\n", b"\r\n" + b"X: y\r\n" * 20_000 + b"\r\n"),
    "cut off": upgrade()[:60],
    "one byte": b"G",
    "nothing": b"",
}


@pytest.mark.parametrize("request_bytes", WRONG_UPGRADES.values(), ids=WRONG_UPGRADES)
def test_wrong_upgrades(fuzzed: Daemon, request_bytes: bytes) -> None:
    """A wrong WebSocket upgrade is answered with an HTTP error of the client's or a close."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.send(request_bytes)
    answer = raw.end()
    raw.close()
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 505", b"HTTP/1.1 501")), answer


def test_half_upgrade_does_not_block(fuzzed: Daemon, witness: Witness) -> None:
    """While one client dawdles over its upgrade, others connect and work."""
    dawdler = RawWebSocket(fuzzed.address("ws"))
    dawdler.send(upgrade()[:50])
    with fuzzed.connect("ws") as other:
        assert other.result("echo", {"x": 1}) == {"x": 1}
    witness.check()
    dawdler.close()


@pytest.mark.parametrize("path", ["/", "/api/jet/", "/any/path?x=1", "/%C3%BC"])
def test_any_path_is_served(fuzzed: Daemon, path: str) -> None:
    """A WebSocket may be opened at any path."""
    raw = RawWebSocket(fuzzed.address("ws"))
    assert "sec-websocket-protocol: jet" in raw.open(line=f"GET {path} HTTP/1.1").lower()
    raw.send(frame(ECHO.encode()))
    answer = raw.read()
    assert answer is not None
    assert strict_json(answer.payload.decode()) == ECHOED
    raw.close()


def test_no_subprotocol(fuzzed: Daemon) -> None:
    """A client that offers no subprotocol is served all the same."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open(Sec_WebSocket_Protocol=None)
    raw.send(frame(ECHO.encode()))
    answer = raw.read()
    assert answer is not None
    assert strict_json(answer.payload.decode()) == ECHOED
    raw.close()


def test_several_subprotocols(fuzzed: Daemon) -> None:
    """Of several subprotocols that are offered the daemon picks jet."""
    raw = RawWebSocket(fuzzed.address("ws"))
    head = raw.open(Sec_WebSocket_Protocol="chat, jet, superchat").lower()
    assert "sec-websocket-protocol: jet\r\n" in head + "\r\n"
    raw.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(ECHO[:9].encode(), fin=False), frame(ECHO[9:].encode(), CONTINUATION)],
        [frame(byte.encode(), CONTINUATION if i else TEXT, fin=i == len(ECHO) - 1) for i, byte in enumerate(ECHO)],
        [frame(b"", fin=False), frame(b"", CONTINUATION, fin=False), frame(ECHO.encode(), CONTINUATION)],
        [frame(ECHO[:9].encode(), fin=False), frame(b"hi", PING), frame(ECHO[9:].encode(), CONTINUATION)],
    ],
    ids=["two", "bytes", "empty", "with a ping between"],
)
def test_fragmented_messages(fuzzed: Daemon, pieces: list[bytes]) -> None:
    """A message in fragments is put together, control frames between them are served."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    for piece in pieces:
        raw.send(piece)
    answer = raw.read()
    while answer is not None and answer.opcode in (PING, PONG):
        answer = raw.read()
    assert answer is not None
    assert strict_json(answer.payload.decode()) == ECHOED
    raw.close()


WRONG_FRAMES = {
    "unmasked": frame(ECHO.encode(), masked=False),
    "continuation of nothing": frame(ECHO.encode(), CONTINUATION),
    "text inside of a fragmented text": frame(b"{", fin=False) + frame(ECHO.encode()),
    "reserved bits": frame(ECHO.encode(), rsv=2),
    "unknown opcode": frame(ECHO.encode(), 0x3),
    "unknown control opcode": frame(b"", 0xB),
    "fragmented ping": frame(b"x", PING, fin=False),
    "long ping": frame(b"x" * 200, PING),
    "close of one byte": frame(b"x", CLOSE),
    "close with a bad code": frame(b"\x00\x01", CLOSE),
    "close with bad text": frame(b"\x03\xe8\xff\xff", CLOSE),
    "length with the top bit": b"\x81\xff" + b"\xff" * 8 + b"mask",
    "length above the limit": b"\x81\xff" + struct.pack(">Q", 4_000_001) + b"mask",
    "fragments above the limit": frame(b"[" * 2_000_001, fin=False) + frame(b"[" * 2_000_001, CONTINUATION),
}


@pytest.mark.parametrize("data", WRONG_FRAMES.values(), ids=WRONG_FRAMES)
def test_wrong_websocket_frames(fuzzed: Daemon, data: bytes) -> None:
    """A frame against the WebSocket protocol closes the connection, and is not executed."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    raw.send(data)
    while (answer := raw.read()) is not None:
        assert answer.opcode in (CLOSE, PING), answer
    raw.close()


def test_binary_message(fuzzed: Daemon) -> None:
    """A binary WebSocket message is answered or ends the connection."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    raw.send(frame(b"\xff\x00\xfe", BINARY))
    raw.send(frame(ECHO.encode()))
    answer = raw.read()
    while answer is not None and answer.opcode == PING:
        answer = raw.read()
    assert answer is None or answer.opcode == CLOSE or strict_json(answer.payload.decode())
    raw.close()


def test_ping_is_answered(fuzzed: Daemon) -> None:
    """A ping gets its pong with the same payload."""
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    raw.send(frame(b"are you there", PING))
    answer = raw.read()
    while answer is not None and answer.opcode == PING:
        answer = raw.read()
    assert answer is not None
    assert (answer.opcode, answer.payload) == (PONG, b"are you there")
    raw.close()


@pytest.mark.parametrize("seed", range(20))
def test_random_websocket_bytes(fuzzed: Daemon, seed: int) -> None:
    """Random bytes after a good upgrade end in a close."""
    rng = random.Random(seed)
    raw = RawWebSocket(fuzzed.address("ws"))
    raw.open()
    raw.send(rng.randbytes(rng.randrange(1, 300)))
    raw.end()
    raw.close()


def test_sudden_ends(fuzzed: Daemon, witness: Witness) -> None:
    """Connections that are opened and dropped at once, on all transports, leave nothing behind."""
    for transport in ("tcp", "unix"):
        for _ in range(50):
            fuzzed.connect(transport).close()
    for _ in range(50):
        RawWebSocket(fuzzed.address("ws")).close()
    witness.check()
