"""The codec of the binary protocol: what is written is read again, and nothing that arrives can do more than be
refused.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetbus.errors import JetError, UnknownService
from jetbus.wire import binary
from jetbus.wire.binary import BadFrame

KEYS = st.text(st.characters(codec="utf-8"), max_size=200)
MIMES = st.one_of(st.sampled_from(sorted(binary.NUMBERS)), KEYS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
AROUND = st.binary(max_size=20)
NOT_UTF_8 = b"\xff\xfe"


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# -- keys, bodies, numbers


@given(text=KEYS, before=AROUND, after=AROUND)
def test_keys(text: str, before: bytes, after: bytes) -> None:
    """A key is read where it was written, and tells where it ends."""
    frame = before + binary.encode_key(text) + after
    assert binary.read_key(frame, len(before)) == (text, len(frame) - len(after))


@given(mime=MIMES, data=st.binary(max_size=300), before=AROUND, after=AROUND)
def test_bodies(mime: str, data: bytes, before: bytes, after: bytes) -> None:
    """A value of any type is read where it was written, with its type, and tells where it ends."""
    body = binary.encode_typed_body(mime, data)
    frame = before + body + after
    assert binary.read_body(frame, len(before)) == (body, len(frame) - len(after))
    assert binary.read_mime(body) == mime
    assert body.endswith(data)


@given(number=st.integers(0, 2**32 - 1), before=AROUND, after=AROUND)
def test_numbers(number: int, before: bytes, after: bytes) -> None:
    """A number is read where it was written."""
    frame = before + binary.encode_number(number) + after
    assert binary.read_number(frame, len(before)) == (number, len(before) + 4)


def test_types_have_one_number() -> None:
    """Every type with a number has one number, and types without have 255."""
    assert {binary.MIMES[number] for number in binary.NUMBERS.values()} == set(binary.NUMBERS)
    assert len(set(binary.NUMBERS.values())) == len(binary.NUMBERS)
    assert (
        binary.encode_typed_body("x/y", b"z") == bytes((255,)) + struct.pack("<I", 6) + binary.encode_key("x/y") + b"z"
    )


@given(
    whole=st.one_of(KEYS.map(binary.encode_key), MIMES.map(lambda mime: binary.encode_typed_body(mime, b"data"))),
    data=st.data(),
)
def test_what_is_cut_off_is_refused(whole: bytes, data: st.DataObject) -> None:
    """No part of a key or value is taken for a whole one."""
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    is_key = whole[:2] == struct.pack("<H", len(whole) - 2)
    with pytest.raises(BadFrame):
        (binary.read_key if is_key else binary.read_body)(cut, 0)


BAD_BODIES = {
    "unknown type": (bytes((21, 0, 0, 0, 0)), "21 is no value type"),
    "no value with bytes": (bytes((0, 1, 0, 0, 0, 9)), "type 0 has no bytes"),
    "other without its name": (bytes((255, 1, 0, 0, 0, 9)), "ends before a key"),
    "other with a name that is too long": (bytes((255, 3, 0, 0, 0, 9, 0, 65)), "ends within a key"),
    "other with a name that is no UTF-8": (bytes((255, 4, 0, 0, 0, 2, 0)) + NOT_UTF_8, "not UTF-8"),
}


@pytest.mark.parametrize(("frame", "says"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_bodies(frame: bytes, says: str) -> None:
    """A value whose type does not fit its bytes is refused."""
    with pytest.raises(BadFrame, match=says):
        binary.read_body(frame, 0)


# -- info and errors


@pytest.mark.parametrize("message", [b"", binary.INFO_MESSAGE[:-1], binary.INFO_MESSAGE + b"\0", b"\2" * 13])
def test_no_info(message: bytes) -> None:
    """Other messages than info messages are refused."""
    with pytest.raises(BadFrame):
        binary.read_info(message)


def test_info() -> None:
    """The info message has the version."""
    assert binary.read_info(binary.INFO_MESSAGE) == binary.VERSION


ERRORS = st.fixed_dictionaries({"code": st.integers(-(2**31), 2**31 - 1), "message": KEYS}, optional={"data": VALUES})


@given(error=ERRORS, request_id=st.binary(min_size=4, max_size=4))
def test_errors(error: dict[str, Any], request_id: bytes) -> None:
    """An error comes out as it went in, its data as JSON text."""
    message = binary.encode_error(request_id, error)
    assert message[:6] == b"\3" + request_id + binary.ERROR
    binary.check_response(message)
    received = binary.read_error(message, 6)
    assert (received["code"], received["message"]) == (error["code"], error["message"])
    assert ("data" in received) is ("data" in error)
    if "data" in error:
        assert json.loads(bytes(received["data"])) == error["data"]


ODD_ERRORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"code": -32603, "message": ""}),
    "a code that is text": ({"code": "x", "message": "m"}, {"code": -32603, "message": "m"}),
    "a code beyond 32 bits": ({"code": 2**31, "message": "m"}, {"code": -32603, "message": "m"}),
    "a message that is no text": ({"code": 1, "message": 5}, {"code": 1, "message": "5"}),
    "a message beyond a key": ({"code": 1, "message": "ü" * 40_000}, {"code": 1, "message": "ü" * 32_767}),
}


@pytest.mark.parametrize(("error", "received"), ODD_ERRORS.values(), ids=ODD_ERRORS)
def test_odd_errors(error: dict[str, Any], received: dict[str, Any]) -> None:
    """An owner's error that does not fit is made to fit."""
    message = binary.encode_error(b"", error)
    assert message[1:5] == binary.NO_REQUEST
    assert binary.read_error(message, 6) == received


@given(answer=st.binary(max_size=60))
def test_any_answer(answer: bytes) -> None:
    """Any response of an owner is accepted or refused, whatever the bytes."""
    for message in (answer, b"\3\1\0\0\0\0" + answer, b"\3\1\0\0\0\1" + answer):
        try:
            binary.check_response(message)
        except JetError:
            continue
        assert message[5:6] in (binary.SUCCESS, binary.ERROR)


# -- payloads


@given(function=st.integers(0, 255), frame=st.binary(max_size=120), at=st.integers(0, 10))
@example(
    function=binary.ADD_STATE,
    frame=binary.encode_key("a") + binary.encode_json_body(b"1") + binary.encode_json_body(b"[" * 5000),
    at=0,
)
@example(
    function=binary.GET, frame=binary.encode_key("") + binary.encode_json_body(b'{"a":' * 300 + b"1" + b"}" * 300), at=0
)
@example(function=binary.GET, frame=binary.encode_key("") + binary.encode_json_body(b'{"a":1e999}'), at=0)
@example(
    function=binary.GET, frame=binary.encode_key("") + binary.encode_json_body(b'{"a":"' + NOT_UTF_8 + b'"}'), at=0
)
def test_any_payload(function: int, frame: bytes, at: int) -> None:
    """Whatever the bytes, a payload is read or refused; nothing else can happen."""
    try:
        parts, options = binary.read_payload(frame, at, function)
    except JetError:
        return
    row = binary.FUNCTIONS[function]
    assert len(parts) == len(row.layout)
    assert not options or isinstance(json.loads(options), dict)


PARTS: dict[Any, st.SearchStrategy[tuple[Any, bytes]]] = {
    binary.read_key: KEYS.map(lambda text: (text, binary.encode_key(text))),
    binary.read_body: st.builds(binary.encode_typed_body, MIMES, st.binary(max_size=50)).map(lambda body: (body, body)),
    binary.read_number: st.integers(0, 2**32 - 1).map(lambda number: (number, binary.encode_number(number))),
}


@pytest.mark.parametrize("function", binary.FUNCTIONS.values(), ids=lambda function: function.name)
@given(data=st.data())
def test_payloads(function: binary.Function, data: st.DataObject) -> None:
    """The parts of every function are read as they were written, with options where there can be some."""
    (number,) = [number for number, row in binary.FUNCTIONS.items() if row is function]
    drawn = [data.draw(PARTS[read]) for read in function.layout]
    frame = b"".join(written for _, written in drawn)
    expected = [part for part, _ in drawn]
    assert binary.read_payload(frame, 0, number) == (expected, b"")
    named = data.draw(st.dictionaries(KEYS, VALUES, max_size=3))
    with_options = frame + binary.encode_json_body(compact(named))
    if function.options:
        parts, options = binary.read_payload(with_options, 0, number)
        assert (parts, json.loads(options)) == (expected, named)
    with pytest.raises(BadFrame):
        binary.read_payload(frame + b"\0", 0, number)


BAD_OPTIONS = {
    "no object": binary.encode_json_body(b"[]"),
    "no JSON": binary.encode_json_body(b"{"),
    "another type": binary.encode_body(binary.TEXT, b"{}"),
    "nothing": binary.EMPTY_BODY,
    "a key twice": binary.encode_json_body(b'{"a":1,"a":2}'),
    "no UTF-8": binary.encode_json_body(b'{"a":"' + NOT_UTF_8 + b'"}'),
    "two of them": binary.encode_json_body(b"{}") * 2,
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(options: bytes) -> None:
    """Options are one JSON object or nothing."""
    with pytest.raises(BadFrame):
        binary.read_payload(binary.encode_key("a") + options, 0, binary.GET)


def test_unknown_function() -> None:
    """A function that is not there is refused by its number."""
    with pytest.raises(UnknownService) as refused:
        binary.read_payload(b"", 0, 99)
    assert refused.value.data == 99


# -- one bus: bodies as JSON and back


@given(value=VALUES)
def test_json_stays_json(value: Any) -> None:
    """A JSON value is the same JSON on both sides, unless it looks like bytes."""
    text = compact(value)
    assert binary.to_json(binary.encode_json_body(text)) == text
    assert binary.to_json(binary.from_json(text)) == text


@given(mime=MIMES, data=st.binary(max_size=300))
def test_bytes_as_json(mime: str, data: bytes) -> None:
    """Bytes are told to JSON peers with type and base64, and come back from them as they were."""
    body = binary.encode_typed_body(mime, data)
    received = binary.to_json(body)
    if body[0] == binary.JSON:
        assert received in (data.strip(), compact({"mime": mime, "base64": b64encode(data).decode()}))
        return
    if body[0] == binary.TEXT and received[:1] == b'"':
        assert json.loads(received) == data.decode()
        assert binary.from_json(received, binary.TEXT) == body
        return
    assert json.loads(received) == {"mime": mime, "base64": b64encode(data).decode()}
    assert binary.from_json(received) == body
    assert binary.from_json(received, binary.TEXT) == body


@given(
    body=st.builds(binary.encode_body, st.sampled_from(sorted(binary.MIMES.keys() - {0, 255})), st.binary(max_size=100))
)
def test_json_peers_get_json(body: bytes) -> None:
    """Whatever a binary peer sends, JSON peers are told JSON."""
    json.loads(binary.to_json(body))


NOT_BYTES = [
    b'{"base64":"AAE="}',
    b'{"mime":"x/y","base64":"A"}',
    b'{"mime":"x/y","base64":"A A="}',
    b'{"mime":1,"base64":"AAE="}',
    b'{"mime":"x/y","base64":"AAE=","more":1}',
    b'{"mime":"x/y","base64":null}',
    b'[{"mime":"x/y","base64":"AAE="}]',
]


@pytest.mark.parametrize("text", NOT_BYTES, ids=bytes.decode)
def test_what_only_looks_like_bytes(text: bytes) -> None:
    """JSON that is not exactly type and base64 stays JSON."""
    assert binary.from_json(text) == binary.encode_json_body(text)


def test_no_value() -> None:
    """No value at all is null to JSON peers."""
    assert binary.to_json(binary.EMPTY_BODY) == b"null"


BAD_JSON = {
    "not JSON": b"{",
    "empty": b"",
    "not UTF-8": b'"' + NOT_UTF_8 + b'"',
    "too deep": b"[" * 200 + b"]" * 200,
    "two values": b"1 2",
}


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_what_is_called_json_and_is_none(data: bytes) -> None:
    """A value that is said to be JSON and is not is told as bytes of that type."""
    received = json.loads(binary.to_json(binary.encode_json_body(data)))
    assert received == {"mime": "application/json", "base64": b64encode(data).decode()}
