"""JSON texts to messages: the quick way and the thorough one agree, and nothing bad gets through."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from jetbus.errors import InvalidRequest, MissingParam, ParseError, WrongType
from jetbus.wire import jsonrpc
from jetbus.wire.jsonrpc import (
    ABSENT,
    NULL,
    PARSE_ERROR_TEXT_MAX,
    UNREADABLE,
    BadId,
    check_text,
    decode_message,
    diagnose,
    has_doubled_key,
    is_compact,
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


def test_parts_of_a_request() -> None:
    """A request has an id, a method and parameters; values stay the bytes they were."""
    message = decode_message(b'{"id":7,"method":"set","params":{"path":"a/\\u00e4","value": 1.50 ,"timeout":2}}')
    assert bytes(message.id) == b"7"
    assert message.method == "set"
    assert message.params is not None
    assert message.params.path == "a/ä"
    assert bytes(message.params.value) == b"1.50"
    assert bytes(message.params.timeout) == b"2"
    assert not message.params.args
    assert not message.result


def test_parts_of_a_response() -> None:
    """A response has an id and a result or an error, whatever these are."""
    message = decode_message(b'{"id":"r1","result":false}')
    assert (bytes(message.id), message.method, bytes(message.result)) == (b'"r1"', None, b"false")
    assert not message.error
    assert bytes(decode_message(b'{"id":"r1","error":null}').error) == b"null"


def test_absent_is_not_null() -> None:
    """A value of null is a value."""
    params = decode_message(b'{"method":"add","params":{"path":"a","value":null}}').params
    assert params is not None
    assert params.value == NULL
    bare = decode_message(b'{"method":"add","params":{"path":"a"}}').params
    assert bare is not None
    assert not bare.value
    nameless = decode_message(b'{"method":"add","params":{}}').params
    assert nameless is not None
    assert nameless.path is UNSET


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
    with pytest.raises(UNREADABLE):
        decode_message(text)
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


# Doubled keys.

DOUBLED: dict[str, tuple[str, bool]] = {
    "plain": ('{"id":1,"method":"set","params":{"path":"a","value":1}}', False),
    "id": ('{"id":1,"id":2,"method":"info"}', True),
    "id apart": ('{"id":1,"method":"info","id":2}', True),
    "same id": ('{"id":1,"id":1,"method":"info"}', True),
    "method": ('{"method":"info","method":"get"}', True),
    "params": ('{"method":"get","params":{},"params":{}}', True),
    "result": ('{"id":1,"result":1,"result":2}', True),
    "error": ('{"id":1,"error":1,"error":2}', True),
    "path": ('{"method":"add","params":{"path":"a","path":"b"}}', True),
    "value": ('{"method":"change","params":{"path":"a","value":1,"value":2}}', True),
    "args": ('{"method":"call","params":{"path":"a","args":[],"args":[1]}}', True),
    "access": ('{"method":"add","params":{"path":"a","access":{},"access":null}}', True),
    "timeout": ('{"method":"set","params":{"path":"a","timeout":1,"value":1,"timeout":2}}', True),
    "spaces between": ('{ "id" : 1 , "id" : 2 , "method" : "info" }', True),
    "escaped key": ('{"id":1,"\\u0069d":2,"method":"info"}', True),
    "both escaped": ('{"\\u0069\\u0064":1,"\\u0069d":2,"method":"info"}', True),
    "escaped key of params": ('{"method":"add","params":{"path":"a","pa\\u0074h":"b"}}', True),
    "escaped value": ('{"method":"add","params":{"path":"a","value":"\\"path\\":1"}}', False),
    "same key in message and params": ('{"id":1,"method":"fetch","params":{"id":"f"}}', False),
    "key as value": ('{"id":"id","method":"method","params":{"path":"path","value":"value"}}', False),
    "inside a value": ('{"method":"change","params":{"path":"a","value":{"id":1,"id":2}}}', False),
    "inside a value, escaped": ('{"method":"change","params":{"path":"a","value":{"\\u0069d":1,"id":2}}}', False),
    "inside a result": ('{"id":1,"result":{"value":1,"value":2}}', False),
    "inside args": ('{"method":"call","params":{"path":"a","args":[{"path":1,"path":2}]}}', False),
    "in the second params": ('{"method":"x","params":1,"params":{"path":"a"}}', True),
    "other case": ('{"id":1,"Id":2,"method":"info"}', False),
    "no object": ('["id","id"]', False),
    "no json": ('{"id":1,"id":', False),
}


@pytest.mark.parametrize(("text", "doubled"), DOUBLED.values(), ids=DOUBLED)
def test_doubled_keys(text: str, doubled: bool) -> None:
    """A key that means something is noticed when it is given twice, however it is spelt; values are not looked at."""
    assert has_doubled_key(text.encode()) is doubled


_KEYS = ["id", "method", "params", "result", "error", "jsonrpc"]
_PARAM_KEYS = ["path", "value", "args", "timeout", "element"]
_small: st.SearchStrategy[Any] = st.one_of(
    st.integers(-99999, 99999),
    st.booleans(),
    st.none(),
    st.text(alphabet='aä"\\é', max_size=4),
    st.just([]),
    st.just({}),
)


def _spelt(key: str, escaped: bool) -> str:
    return f'"\\u{ord(key[0]):04x}{key[1:]}"' if escaped else json.dumps(key)


@st.composite
def _object(draw: st.DrawFn, keys: list[str], inner: str | None) -> str:
    """An object text with these keys, some perhaps twice and some spelt in an odd way."""
    members = []
    for key in draw(st.lists(st.sampled_from(keys), max_size=5)):
        value = json.dumps(draw(_small), ensure_ascii=draw(st.booleans()))
        if key in ("method", "path"):
            value = json.dumps(draw(st.text(alphabet="abä", max_size=4)))
        if key == "params":
            value = inner or "null"
        members.append(f"{_spelt(key, draw(st.integers(0, 9)) == 0)}:{value}")
    return "{" + draw(st.sampled_from([",", ",", ", "])).join(members) + "}"


@st.composite
def _message_text(draw: st.DrawFn) -> bytes:
    return draw(_object(_KEYS, draw(_object(_PARAM_KEYS, None)))).encode()


@given(_message_text())
@example(b'{"id":1234,"id":5}')
@example(b'{"id":123,"id":2,"method":"remove","params":{"path":"a"}}')
@example(b'{"id":123,"id":2,"method":"add","params":{"path":"a"}}')
@example(b'{"method":"add","params":{"path":"a","path":""}}')
@example(b'{"id":1,"method":"set","params":{"path":"a","value":1,"value":2}}')
@example(b'{"id":1,"id":2,"method":"call","params":{"path":"a","args":[]}}')
def test_compact_means_no_doubled_key(text: bytes) -> None:
    """A message that is taken as compact has no key twice."""
    try:
        message = decode_message(text)
    except UNREADABLE:
        assume(False)
        raise
    if is_compact(text, message):
        assert not has_doubled_key(text)


COMPACT = {
    "change": '{"method":"change","params":{"path":"a/b","value":21.5}}',
    "change with id": '{"id":3,"method":"change","params":{"path":"a/b","value":{"x":[1]}}}',
    "set": '{"id":"q1","method":"set","params":{"path":"a","value":null}}',
    "call": '{"id":1,"method":"call","params":{"path":"a","args":[1,2]}}',
    "add": '{"id":1,"method":"add","params":{"path":"a","value":1}}',
    "result": '{"id":"r1","result":{}}',
}


@pytest.mark.parametrize("text", COMPACT.values(), ids=COMPACT)
def test_the_usual_messages_are_compact(text: str) -> None:
    """The messages that libraries send take the short way."""
    assert is_compact(text.encode(), decode_message(text.encode()))


# Depth.


def _nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


def _mixed(depth: int) -> str:
    """Objects and lists in turn."""
    text = "1"
    for level in range(depth):
        text = f"[{text}]" if level % 2 else f'{{"a":{text}}}'
    return text


DEPTH_MAX = 10

DEPTHS = {
    "lists": _nested,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "lists and objects": _mixed,
    "with brackets in text": lambda depth: _nested(depth, '"[[[[[[[[[[[[[[{{{{{{{{{{{{"'),
    "with closing brackets in text": lambda depth: _nested(depth, '"]]]]]]]]]]]]]]}}}}}}}}"'),
    "with escaped quotes in text": lambda depth: _nested(depth, r'"\"[[[[[[[[[[[[[[[[[[\"]"'),
    "with escaped backslashes": lambda depth: _nested(depth, r'"\\","[[[[[[[[[[[[[[\\"'),
    "with an escaped bracket": lambda depth: _nested(depth, r'"[[[[[[[[[[[["'),
    "with neighbours": lambda depth: _nested(depth - 1, ",".join(["[]"] * 50)),
    "with neighbours outside": lambda depth: f"[{','.join([_nested(depth - 1)] * 5)}]",
    "with spaces": lambda depth: " [" * depth + " " + "] " * depth,
}


@pytest.mark.parametrize("make", DEPTHS.values(), ids=DEPTHS)
def test_depth_at_the_limit(make: Any) -> None:
    """Exactly the allowed depth passes, one level more does not; brackets inside text are no depth."""
    allowed, deeper = make(DEPTH_MAX), make(DEPTH_MAX + 1)
    json.loads(allowed), json.loads(deeper)
    check_text(allowed.encode(), DEPTH_MAX)
    with pytest.raises(InvalidRequest) as refused:
        check_text(deeper.encode(), DEPTH_MAX)
    assert refused.value.data == {"depthMax": DEPTH_MAX}


def _depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth_of, value), default=0)
    return 0


@given(
    st.recursive(
        st.one_of(st.integers(), st.text(alphabet='[]{}"\\a', max_size=8)),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=3)
        ),
        max_leaves=20,
    ),
    st.integers(1, 6),
)
def test_depth_of_any_value(value: Any, depth_max: int) -> None:
    """A text is refused if and only if it is nested deeper than allowed."""
    refused = False
    try:
        check_text(json.dumps(value).encode(), depth_max)
    except InvalidRequest:
        refused = True
    assert refused is (_depth_of(value) > depth_max)


NO_UTF8 = {
    "lone byte": b'{"method":"\xff"}',
    "cut sequence": b'"\xe2\x82"',
    "surrogate": b'"\xed\xa0\x80"',
    "overlong form": b'"\xc0\xaf"',
    "beyond unicode": b'"\xf5\x80\x80\x80"',
}


@pytest.mark.parametrize("text", NO_UTF8.values(), ids=NO_UTF8)
def test_invalid_utf8(text: bytes) -> None:
    """A text that is no UTF-8 is no JSON."""
    with pytest.raises(ParseError):
        check_text(text, 128)


def test_any_valid_text_passes() -> None:
    """Any other text passes, in every alphabet."""
    check_text('{"é":"温度 🌡 \U0010ffff"}'.encode(), 128)


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


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    """Whatever arrives is a message or one of the errors that the bus answers."""
    try:
        check_text(text, 128)
        decode_message(text)
    except (ParseError, InvalidRequest, *UNREADABLE):
        return
    assert isinstance(msgspec.json.decode(text), dict)
