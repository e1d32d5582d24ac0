"""Parts of messages: ids, methods, parameters and values, read and refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from jetbus.errors import InvalidRequest, MissingParam, ParseError, WrongType
from jetbus.wire import jsonrpc
from jetbus.wire.jsonrpc import (
    ABSENT,
    PARSE_ERROR_TEXT_MAX,
    BadId,
    diagnose,
    loads,
    read_batch,
    read_fields,
    read_id,
    read_method,
    read_object,
    read_params,
    read_text,
)

# Messages.

DIAGNOSED: dict[str, tuple[bytes, type[Exception]]] = {
    "no json": (b"hello", ParseError),
    "nothing": (b"", ParseError),
    "half a message": (b'{"id":1,"method":"in', ParseError),
    "trailing bytes": (b'{"id":1} x', ParseError),
    "single quotes": (b"{'id':1}", ParseError),
    "invalid utf-8 as text": (b'"\xff"', ParseError),
    "a number": (b"123", InvalidRequest),
    "null": (b"null", InvalidRequest),
    "a text": (b'"x"', InvalidRequest),
    "deep nesting": (b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ParseError),
}


@pytest.mark.parametrize(("text", "error"), DIAGNOSED.values(), ids=DIAGNOSED)
def test_diagnosis(text: bytes, error: type[Exception]) -> None:
    """Unreadable texts are either not JSON or not a message, and the error says which."""
    with pytest.raises(error):
        diagnose(text)


def test_parse_error_shows_the_text() -> None:
    """The error for what is no JSON shows it, but not more of it than is useful."""
    with pytest.raises(ParseError) as refused:
        diagnose(b"x" * 5000)
    assert refused.value.data == "x" * PARSE_ERROR_TEXT_MAX


def test_rare_forms_give_an_envelope() -> None:
    """A message whose parts have unusual types is read, with nothing taken for granted."""
    envelope = diagnose(b'{"id":1,"method":2,"params":["a"]}')
    assert (bytes(envelope.id), bytes(envelope.method), bytes(envelope.params)) == (b"1", b"2", b'["a"]')


# Ids.

IDS = {
    "integer": (b"7", b"7"),
    "zero": (b"0", b"0"),
    "negative": (b"-1", b"-1"),
    "fraction": (b"1.5", b"1.5"),
    "exponent": (b"1E2", b"1E2"),
    "beyond 64 bits": (b"123456789012345678901234567890", b"123456789012345678901234567890"),
    "text": (b'"q1"', b'"q1"'),
    "empty text": (b'""', b'""'),
    "escaped text": (b'"\\u0041"', b'"\\u0041"'),
    "null": (b"null", b""),
    "absent": (b"", b""),
}


@pytest.mark.parametrize(("raw", "echoed"), IDS.values(), ids=IDS)
def test_ids_are_echoed(raw: bytes, echoed: bytes) -> None:
    """A text or number is echoed exactly as it came; null or nothing makes a notification."""
    assert read_id(Raw(raw)) == echoed


@pytest.mark.parametrize("raw", [b"true", b"false", b"[]", b"{}", b'["a"]', b'{"a":1}'])
def test_bad_ids(raw: bytes) -> None:
    """Nothing else is an id."""
    with pytest.raises(BadId) as refused:
        read_id(Raw(raw))
    assert bytes(refused.value.data) == raw


# Parts.


@pytest.mark.parametrize("raw", [b"1", b"null", b"[]", b"true"])
def test_method_is_a_text(raw: bytes) -> None:
    """A service has a name, and that is a text."""
    with pytest.raises(InvalidRequest) as refused:
        read_method(Raw(raw))
    assert refused.value.data == json.loads(raw)
    assert read_method(Raw(b'"\\u0061dd"')) == "add"


def test_params_of_the_wrong_type() -> None:
    """Parameters are an object, and in them the path is a text."""
    assert read_params(Raw(b"null")) is None
    assert read_params(ABSENT) is None
    for raw, name in ((b'{"path":1}', "path"), (b"5", "params"), (b'"x"', "params"), (b"[]", "params")):
        with pytest.raises(WrongType) as refused:
            read_params(Raw(raw))
        assert refused.value.subject == name


def test_parts_of_a_batch() -> None:
    """The messages of a batch are the bytes they were."""
    assert read_batch(b' [ {"id": 1} , 5,[]]') == [b'{"id": 1}', b"5", b"[]"]
    with pytest.raises(ParseError):
        read_batch(b'[{"id":1},')


def test_objects_and_fields() -> None:
    """Rare services read objects; nothing and null are empty ones where that is allowed."""
    assert read_object(ABSENT) == {}
    assert read_object(Raw(b"null")) == {}
    assert read_object(Raw(b'{"a":[1]}')) == {"a": [1]}
    with pytest.raises(WrongType):
        read_object(Raw(b"[]"))
    assert read_fields(Raw(b'{"a": 1.0 }')) == {"a": Raw(b"1.0")}
    with pytest.raises(MissingParam):
        read_fields(ABSENT)
    with pytest.raises(WrongType):
        read_fields(Raw(b"5"))
    assert read_text(Raw(b'"\\u0061"'), "path") == "a"
    with pytest.raises(WrongType):
        read_text(Raw(b"1"), "path")


# Numbers.

NUMBERS: dict[str, tuple[bytes, Any]] = {
    "integer": (b"5", 5),
    "64 bits": (b"18446744073709551615", 2**64 - 1),
    "negative 64 bits": (b"-9223372036854775808", -(2**63)),
    "beyond 64 bits": (b"123456789012345678901234567890", 123456789012345678901234567890),
    "integers are no floats": (b"9007199254740993", 9007199254740993),
    "fraction": (b"0.1", 0.1),
    "too large for a float": (b"1e400", math.inf),
    "too small for a float": (b"-1e400", -math.inf),
    "nearly nothing": (b"1e-400", 0.0),
    "5000 digits": (b"9" * 5000, math.inf),
    "minus 5000 digits": (b"-" + b"9" * 5000, -math.inf),
    "inside a list": (b"[1e400]", [math.inf]),
    "inside an object": (b'{"a":' + b"1" * 5000 + b"}", {"a": math.inf}),
    "999 digits": (b"1" * 999, int("1" * 999)),
}


@pytest.mark.parametrize(("text", "number"), NUMBERS.values(), ids=NUMBERS)
def test_numbers(text: bytes, number: Any) -> None:
    """Numbers of any size are read; beyond a float's range they are infinite."""
    assert loads(text) == number
    assert type(loads(text)) is type(number)


_small = st.one_of(st.integers(-99999, 99999), st.booleans(), st.none(), st.text(alphabet='aä"\\é', max_size=4))


@given(st.recursive(_small, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_values_are_those_of_json(value: Any) -> None:
    """A value is what Python's own JSON says."""
    assert loads(json.dumps(value).encode()) == value


# Responses.


def test_responses() -> None:
    """A response has the request's id and a result or an error; an error may have no id."""
    assert jsonrpc.encode_result(b"7", b"true") == b'{"id":7,"result":true}'
    assert jsonrpc.encode_failure(b'"q"', b'{"code":1}') == b'{"id":"q","error":{"code":1}}'
    assert jsonrpc.encode_failure(b"", b"{}") == b'{"error":{}}'


def test_what_an_error_has_got() -> None:
    """An error about a parameter shows the parameters, or the message if there are none."""
    text = b'{"id":1,"method":"add","params":{"value":1}}'
    assert bytes(jsonrpc.read_got(text, MissingParam("path"))) == b'{"value":1}'
    bare = b'{"id":1,"method":"add"}'
    assert bytes(jsonrpc.read_got(bare, MissingParam("params"))) == bare
    assert bytes(jsonrpc.read_got(bare, MissingParam("path"))) == bare
