"""Texts that strangers send are checked in full or refused, by the compiled check and by Python alike."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import UNSET

from jetbus.errors import InvalidRequest, LimitReached, ParseError, WrongCount, WrongType
from jetbus.wire import _texts, binary, jsonrpc, lane
from jetbus.wire._texts import COLON, COMMA, TOO_BIG, TOO_LONG
from jetbus.wire.intake import Intake, MessageBatch, NumberTooBig, NumberTooLong, Refusal, TooDeep
from jetbus.wire.jsonrpc import PARSE_ERROR_TEXT_MAX, BadId, LoneSurrogate, Message, MetaParams, Params

DEPTH, CHARS, BATCH = 10, 400, 4
needs_compiled = pytest.mark.skipif(lane.compiled is None, reason="not compiled here")
FORMS = ["python", pytest.param("compiled", marks=needs_compiled)]


def make_intake(form: str = "compiled", chars_max: int = CHARS) -> Intake:
    chosen = lane.compiled if form == "compiled" else None
    return Intake(depth_max=DEPTH, number_chars_max=chars_max, batch_max=BATCH, limit_hits=Counter(), compiled=chosen)


def read_compiled(text: bytes) -> Any:
    """Return what the compiled check makes of a text, None if it leaves it to Python."""
    parts = Message, Params, MetaParams, UNSET, jsonrpc.decode_text
    return lane.compiled.Reader(*parts, lambda _: None, DEPTH, CHARS).read(text)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """The check in Python, or compiled."""
    return str(request.param)


@pytest.fixture
def read(form: str) -> Callable[[bytes], Any]:
    """The function that reads a text."""
    return make_intake(form).read


# Messages.

MESSAGES: dict[str, tuple[str, Message]] = {
    "change": (
        '{"method":"change","params":{"path":"a/b","value":21.5}}',
        Message(method="change", params=Params("a/b", b"21.5")),
    ),
    "set with details": (
        '{"id":7,"method":"set","params":{"path":"a","value": 1.50 ,"timeout":2,"valueAsResult":true}}',
        Message(b"7", "set", Params("a", b"1.50", timeout=b"2", valueAsResult=b"true", has_details=True)),
    ),
    "call": (
        '{"id":"q","method":"call","params":{"path":"m","args":[1,{"a":2}]}}',
        Message(b'"q"', "call", Params("m", args=b'[1,{"a":2}]')),
    ),
    "add with everything": (
        '{"id":1,"method":"add","params":{"path":"a","value":1,"fetchOnly":true,"access":{"x":1},"schema":{},'
        '"element":{},"ts":1.5,"quality":"bad","past":true,"check":"schema"}}',
        Message(
            b"1",
            "add",
            Params(
                "a",
                b"1",
                fetchOnly=b"true",
                access=b'{"x":1}',
                schema=b"{}",
                element=b"{}",
                meta=MetaParams(b"1.5", b'"bad"', b"true", b'"schema"'),
                has_details=True,
            ),
        ),
    ),
    "quality alone": (
        '{"method":"change","params":{"path":"a","value":1,"quality":"bad"}}',
        Message(method="change", params=Params("a", b"1", meta=MetaParams(quality=b'"bad"'), has_details=True)),
    ),
    "remove without a path": ('{"method":"remove","params":{}}', Message(method="remove", params=Params(UNSET))),
    "add without parameters": ('{"method":"add"}', Message(method="add")),
    "parameters are null": ('{"method":"add","params":null}', Message(method="add")),
    "value is null": (
        '{"method":"change","params":{"path":"a","value":null}}',
        Message(method="change", params=Params("a", b"null")),
    ),
    "escaped path": (
        '{"method":"remove","params":{"path":"a/\\u00e4\\ud83c\\udf21"}}',
        Message(method="remove", params=Params("a/ä🌡")),
    ),
    "wide path": ('{"method":"remove","params":{"path":"温/é/🌡"}}', Message(method="remove", params=Params("温/é/🌡"))),
    "escaped method": ('{"method":"\\u0061dd"}', Message(method="add")),
    "escaped keys": (
        '{"m\\u0065thod":"remove","params":{"p\\u0061th":"a"}}',
        Message(method="remove", params=Params("a")),
    ),
    "method behind its parameters": (
        '{"params":{"value":1,"path":"a"},"method":"change"}',
        Message(method="change", params=Params("a", b"1")),
    ),
    "spaces": (
        ' {\r\n"id" : 1 ,\t"method" : "set" , "params" : { "path" : "a" , "value" : [ 1 , 2 ] } } ',
        Message(b"1", "set", Params("a", b"[ 1 , 2 ]")),
    ),
    "rare service": (
        '{"id":1,"method":"fetch","params":{"id":"f","path":{"startsWith":"a"}}}',
        Message(b"1", "fetch", body=b'{"id":"f","path":{"startsWith":"a"}}'),
    ),
    "rare service without parameters": ('{"id":1,"method":"info"}', Message(b"1", "info")),
    "parameters that are a list": ('{"method":"echo","params":[1]}', Message(method="echo", body=b"[1]")),
    "jsonrpc": ('{"jsonrpc":"2.0","id":1,"method":"info"}', Message(b"1", "info", jsonrpc=b'"2.0"')),
    "null id": ('{"id":null,"method":"info"}', Message(method="info")),
    "other members": ('{"id":1,"method":"info","x":{"y":1},"z":[]}', Message(b"1", "info")),
    "twenty other members": (
        '{"method":"info",' + ",".join(f'"m{index}":1' for index in range(20)) + "}",
        Message(method="info"),
    ),
    "result": ('{"id":"r1","result":false}', Message(b'"r1"', result=b"false")),
    "null result": ('{"id":"r1","result":null}', Message(b'"r1"', result=b"null")),
    "error": ('{"id":3,"error":{"code":1}}', Message(b"3", error=b'{"code":1}')),
    "result with any id": ('{"id":[1],"result":true}', Message(b"[1]", result=b"true")),
    "result of method null": ('{"id":3,"method":null,"result":1}', Message(b"3", result=b"1")),
    "by position": (
        '{"id":1,"method":"set","params":["a",5]}',
        Message(b"1", "set", Params("a", b"5"), is_positional=True),
    ),
    "fetch by position": (
        '{"method":"fetch","params":["f",{"match":["a"]}]}',
        Message(method="fetch", body=b'{"id":"f","matcher":{"match":["a"]}}', is_positional=True),
    ),
    "key of a message inside its parameters": (
        '{"id":1,"method":"fetch","params":{"id":"f"}}',
        Message(b"1", "fetch", body=b'{"id":"f"}'),
    ),
    "keys as values": (
        '{"id":"id","method":"set","params":{"path":"path","value":"value"}}',
        Message(b'"id"', "set", Params("path", b'"value"')),
    ),
    "doubled keys inside a value": (
        '{"method":"change","params":{"path":"a","value":{"id":1,"id":2}}}',
        Message(method="change", params=Params("a", b'{"id":1,"id":2}')),
    ),
    "keys of another case": ('{"id":1,"Id":2,"method":"info"}', Message(b"1", "info")),
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.values(), ids=MESSAGES)
def test_messages(text: str, message: Message, read: Callable[[bytes], Any]) -> None:
    """A message has its parts as they were sent; what is missing is empty."""
    found = read(text.encode())
    assert found == message


RARE = {
    "escaped method",
    "escaped keys",
    "twenty other members",
    "parameters that are a list",
    "by position",
    "fetch by position",
}


@needs_compiled
@pytest.mark.parametrize(("name", "text"), [(name, row[0]) for name, row in MESSAGES.items()], ids=MESSAGES)
def test_usual_messages_need_no_second_look(name: str, text: str) -> None:
    """The compiled check alone reads every message but a few rare forms."""
    assert (read_compiled(text.encode()) is None) is (name in RARE)


@needs_compiled
def test_memory_stays_flat() -> None:
    """Reading keeps nothing: each message and each refusal is freed with the last reference to it."""
    reader = make_intake()
    texts = [row[0].encode() for row in MESSAGES.values()] + [row[0] for row in REFUSED.values()]
    gc.collect()  # cycles of earlier tests
    held = _references()
    blocks = 0
    for turn in range(30):
        for text in texts:
            reader.read(text)
        if turn == 10:
            blocks = sys.getallocatedblocks()
    assert sys.getallocatedblocks() - blocks < 100
    assert [after - before for before, after in zip(held, _references(), strict=True)] == [0, 0, 0]


def _references() -> tuple[int, int, int]:
    return sys.getrefcount(UNSET), sys.getrefcount(Params), sys.getrefcount(Message)


# Refusals.

REFUSED: dict[str, tuple[bytes, type[Exception], bytes, str | None]] = {
    "no json": (b"hello", ParseError, b"", None),
    "nothing": (b"", ParseError, b"", None),
    "half a message": (b'{"id":1,"method":"in', ParseError, b"", None),
    "trailing bytes": (b'{"id":1,"method":"info"} x', ParseError, b"", None),
    "single quotes": (b"{'id':1}", ParseError, b"", None),
    "leading zero": (b'{"id":1,"method":"echo","params":01}', ParseError, b"", None),
    "trailing comma": (b'{"id":1,"method":"info",}', ParseError, b"", None),
    "control character": (b'{"id":1,"method":"echo","params":"\n"}', ParseError, b"", None),
    "unknown escape": (b'{"id":1,"method":"echo","params":"\\x"}', ParseError, b"", None),
    "lone byte": (b'{"method":"\xff"}', ParseError, b"", None),
    "cut sequence": (b'{"method":"\xe2\x82"}', ParseError, b"", None),
    "surrogate in utf-8": (b'{"method":"\xed\xa0\x80"}', ParseError, b"", None),
    "overlong utf-8": (b'{"method":"\xc0\xaf"}', ParseError, b"", None),
    "beyond unicode": (b'{"method":"\xf5\x80\x80\x80"}', ParseError, b"", None),
    "half a surrogate pair": (b'{"id":7,"method":"echo","params":"\\ud800"}', LoneSurrogate, b"", None),
    "too deep": (b'{"id":1,"method":"echo","params":' + b"[" * 10 + b"]" * 10 + b"}", TooDeep, b"", None),
    "deep and unbalanced": (b"[" * 100, ParseError, b"", None),
    "a number": (b"123", InvalidRequest, b"", None),
    "null": (b"null", InvalidRequest, b"", None),
    "an id that is a list": (b'{"id":[],"method":"info"}', BadId, b"", None),
    "an id that is true": (b'{"id":true,"method":"info"}', BadId, b"", None),
    "a method that is too long a number": (b'{"id":5,"method":' + b"1" * 401 + b"}", NumberTooLong, b"5", None),
    "a doubled result of a bad id": (b'{"id":[],"result":1,"result":2}', BadId, b"", None),
    "a method that is a number": (b'{"id":5,"method":7}', InvalidRequest, b"5", None),
    "neither request nor response": (b'{"id":5,"params":{}}', InvalidRequest, b"5", None),
    "a path that is a number": (b'{"id":5,"method":"add","params":{"path":1}}', WrongType, b"5", "add"),
    "a path that is null": (b'{"id":5,"method":"add","params":{"path":null}}', WrongType, b"5", "add"),
    "parameters that are a number": (b'{"id":5,"method":"add","params":5}', WrongType, b"5", "add"),
    "too few by position": (b'{"id":5,"method":"set","params":["a"]}', WrongCount, b"5", "set"),
    "too big": (b'{"id":5,"method":"set","params":{"path":"a","value":1e309}}', NumberTooBig, b"5", None),
    "too big among others": (b'{"method":"echo","params":[1,{"a":-1E+400}]}', NumberTooBig, b"", None),
    "too long": (b'{"id":5,"method":"echo","params":' + b"1" * 401 + b"}", NumberTooLong, b"5", None),
    "empty batch": (b"[]", InvalidRequest, b"", None),
    "unfinished batch": (b'[{"id":1},', ParseError, b"", None),
    "too many in a batch": (b"[1,2,3,4,5]", LimitReached, b"", None),
}


@pytest.mark.parametrize(("text", "error", "request_id", "method"), REFUSED.values(), ids=REFUSED)
def test_refusals(
    text: bytes, error: type[Exception], request_id: bytes, method: str | None, read: Callable[[bytes], Any]
) -> None:
    """A refused text gets the error that names its fault, with the id and method if they are known."""
    refusal = read(text)
    assert isinstance(refusal, Refusal)
    assert type(refusal.error) is error
    assert (refusal.known.id, refusal.known.method) == (request_id, method)


def test_parse_error_shows_the_text(read: Callable[[bytes], Any]) -> None:
    """The error for a text that is not JSON shows it, but not more of it than is useful."""
    assert read(b"x" * 5000).error.data == "x" * PARSE_ERROR_TEXT_MAX


def test_limits_that_are_crossed_are_counted(form: str) -> None:
    """Each refusal because of a limit is counted under its name."""
    hits: Counter[str] = Counter()
    chosen = lane.compiled if form == "compiled" else None
    reader = Intake(depth_max=3, number_chars_max=8, batch_max=2, limit_hits=hits, compiled=chosen)
    for text in (b"[[[[]]]]", b'{"method":"echo","params":123456789}', b"[1,2,3]"):
        assert isinstance(reader.read(text), Refusal)
    assert hits == {"depth_max": 1, "number_chars_max": 1, "batch_max": 1}


def test_response_that_the_requester_could_not_read(read: Callable[[bytes], Any]) -> None:
    """A number in a response that is too big is an error for the requester and not for the owner."""
    for text in (b'{"id":"r1","result":[1e309]}', b'{"id":"r1","error":{"data":1e309}}'):
        message = read(text)
        assert isinstance(message, Message)
        assert message.id == b'"r1"'
        assert type(message.unreadable) is NumberTooBig


def test_batches(read: Callable[[bytes], Any]) -> None:
    """A batch is the texts of its messages, and a batch inside it is refused in its turn."""
    batch = read(b' [ {"id": 1} , 5,[1] ]')
    assert batch == MessageBatch([b'{"id": 1}', b"5", b"[1]"])
    assert type(read(batch.members[2]).error) is InvalidRequest
    assert isinstance(read(b"[1]"), MessageBatch)


# Doubled keys.

DOUBLED = {
    "id": '{"id":1,"id":2,"method":"info"}',
    "id apart": '{"id":1,"method":"info","id":2}',
    "same id": '{"id":1,"id":1,"method":"info"}',
    "method": '{"method":"info","method":"get"}',
    "params": '{"method":"get","params":{},"params":{}}',
    "params of other types": '{"method":"x","params":1,"params":{"path":"a"}}',
    "result": '{"id":1,"result":1,"result":2}',
    "error": '{"id":1,"error":1,"error":2}',
    "path": '{"method":"add","params":{"path":"a","path":"b"}}',
    "value": '{"method":"change","params":{"path":"a","value":1,"value":2}}',
    "args": '{"method":"call","params":{"path":"a","args":[],"args":[1]}}',
    "timeout": '{"method":"set","params":{"path":"a","timeout":1,"value":1,"timeout":2}}',
    "quality": '{"method":"set","params":{"path":"a","quality":1,"value":1,"quality":2}}',
    "spaces between": '{ "id" : 1 , "id" : 2 , "method" : "info" }',
    "escaped": '{"id":1,"\\u0069d":2,"method":"info"}',
    "both escaped": '{"\\u0069\\u0064":1,"\\u0069d":2,"method":"info"}',
    "escaped in params": '{"method":"add","params":{"path":"a","pa\\u0074h":"b"}}',
    "another member": '{"id":1,"x":1,"method":"info","x":2}',
    "another member of params": '{"id":1,"method":"fetch","params":{"id":"f","sort":{},"sort":{}}}',
    "among twenty others": '{"method":"info",' + ",".join(f'"m{index % 20}":1' for index in range(21)) + "}",
}


@pytest.mark.parametrize("text", DOUBLED.values(), ids=DOUBLED)
def test_doubled_keys(text: str, read: Callable[[bytes], Any]) -> None:
    """A key that is given twice in a message or its parameters is refused, however it is spelt."""
    refusal = read(text.encode())
    assert isinstance(refusal, Refusal)
    assert str(refusal.error) == "a key is given twice"


# Depth.


def _nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


def _mixed(depth: int) -> str:
    """Objects and lists in turn."""
    text = "1"
    for level in range(depth):
        text = f"[{text}]" if level % 2 else f'{{"a":{text}}}'
    return text


DEPTHS: dict[str, Callable[[int], str]] = {
    "lists": _nested,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "lists and objects": _mixed,
    "with brackets in text": lambda depth: _nested(depth, '"[[[[[[[[[[[[[[{{{{{{{{{{{{"'),
    "with closing brackets in text": lambda depth: _nested(depth, '"]]]]]]]]]]]]]]}}}}}}}}"'),
    "with escaped quotes in text": lambda depth: _nested(depth, r'"\"[[[[[[[[[[[[[[[[[[\"]"'),
    "with escaped backslashes": lambda depth: _nested(depth, r'"\\","[[[[[[[[[[[[[[\\"'),
    "with neighbours": lambda depth: _nested(depth - 1, ",".join(["[]"] * 50)),
    "with neighbours outside": lambda depth: f"[{','.join([_nested(depth - 1)] * 5)}]",
    "with spaces": lambda depth: " [" * depth + " " + "] " * depth,
}


@pytest.mark.parametrize("member", ["params", "x"])
@pytest.mark.parametrize("make", DEPTHS.values(), ids=DEPTHS)
def test_depth_at_the_limit(make: Callable[[int], str], member: str, read: Callable[[bytes], Any]) -> None:
    """Exactly the allowed depth passes, one level more does not; brackets inside text are no depth."""
    allowed, deeper = (f'{{"method":"echo","{member}":{make(depth)}}}' for depth in (DEPTH - 1, DEPTH))
    json.loads(allowed), json.loads(deeper)
    assert isinstance(read(allowed.encode()), Message)
    refusal = read(deeper.encode())
    assert type(refusal.error) is TooDeep
    assert refusal.error.data == {"depthMax": DEPTH}


def test_megabytes_of_brackets(form: str) -> None:
    """The time grows with the length of a text, not with its depth as well."""
    reader, started = make_intake(form), time.process_time()
    assert type(reader.read(b"[" * 1_000_000 + b"]" * 1_000_000).error) is TooDeep  # type: ignore[union-attr]
    assert isinstance(reader.read(b'{"method":"echo","params":[' + b"[[]]," * 400_000 + b"[]]}"), Message)
    assert time.process_time() - started < 10


# Numbers.

BIG = [
    "1e309",
    "-1e309",
    "1E309",
    "1e+309",
    "1e+0309",
    "1.8e308",
    "1e99999999999999999999",
    "1" + "0" * 309,
    "-9" + "9" * 308,
    "1" + "0" * 300 + "e9",
    "1" + "0" * 300 + ".5E+09",
]
FINE = [
    "0",
    "-0",
    "1e308",
    "1.7976931348623157e308",
    "1e-400",
    "0e999",
    "0.0000001e312",
    "18446744073709551615",
    "-9223372036854775808",
    "0." + "3" * 390,
    "1" + "0" * 308,
    "0." + "0" * 300 + "1e500",
    '"1e309"',
    '{"1e309":"9e999"}',
    '["' + "9" * 1000 + '"]',
    '["\\"' + "9" * 1000 + '\\\\"]',
    '{"line1":true,"e1":2,"name":"1e3"}',
]
LONG = ["0." + "1" * 399, "1" * 401, "9" * 5000, "-" + "1" * 400]
AROUND = ["%s", "[%s]", '{"a":"x","b":[1,%s,2]}', '["' + "\\u00e9" * 400 + '",%s]']


def verdict(reader: Intake, value: str) -> type[Exception] | None:
    """Return the error for a value, None if it is accepted."""
    found = reader.read(b'{"method":"echo","params":%b}' % value.encode())
    return type(found.error) if isinstance(found, Refusal) else None


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("number", BIG)
def test_numbers_beyond_a_double(number: str, around: str, form: str) -> None:
    """A number beyond the range of a double is found wherever it is."""
    assert verdict(make_intake(form), around % number) is NumberTooBig


@pytest.mark.parametrize("around", AROUND[:3])
@pytest.mark.parametrize("value", FINE)
def test_numbers_that_fit(value: str, around: str, form: str) -> None:
    """Numbers that fit, and digits that are no number, are let pass."""
    assert verdict(make_intake(form), around % value) is None


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("number", LONG)
def test_numbers_that_are_too_long(number: str, around: str, form: str) -> None:
    """A number with more characters than allowed is found, whatever its magnitude."""
    assert verdict(make_intake(form), around % number) is NumberTooLong


def test_the_limit_of_characters_can_be_small(form: str) -> None:
    """The limit on characters may be less than what a double can hold."""
    reader = make_intake(form, chars_max=8)
    assert verdict(reader, "123456789") is NumberTooLong
    assert verdict(reader, "[12345678,87654321]") is None
    assert verdict(reader, '["123456789"]') is None


_small: st.SearchStrategy[Any] = st.one_of(
    st.integers(-99999, 99999), st.booleans(), st.none(), st.text(alphabet='aä"\\é[{,:', max_size=5), st.just([])
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-330, 330)),
    st.builds("{}.{}E+{}".format, st.integers(0, 99), st.integers(0, 10**20), st.integers(0, 330)),
    st.builds(lambda digits: "7" * digits, st.integers(1, 420)),
)
VALUES = st.recursive(
    st.one_of(NUMBERS.map(str), _small.map(json.dumps), st.sampled_from(["true", "null", '"1e999"', "{}"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8).map(lambda some: f"[{','.join(some)}]"),
        st.dictionaries(st.text('ab"\\[,:', max_size=3), inner, max_size=5).map(
            lambda some: "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in some.items()) + "}"
        ),
    ),
    max_leaves=12,
)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@pytest.mark.parametrize("form", FORMS)
@given(value=VALUES)
@example(value="[1e308,1e309]")
def test_like_a_plain_reader(form: str, value: str) -> None:
    """A value is refused exactly if a plain JSON reader finds it too deep, or a number in it infinite or too long."""
    seen: list[str] = []
    json.loads(value, parse_float=lambda text: seen.append(text), parse_int=lambda text: seen.append(text))
    depth = _depth(json.loads(value, parse_float=str, parse_int=str))
    wanted = depth >= DEPTH or any(math.isinf(float(text)) or len(text) > CHARS for text in seen)
    assert (verdict(make_intake(form), value) is not None) is wanted


# Compiled and in Python.

KEYS = ["id", "method", "params", "result", "error", "jsonrpc", "x"]
PARAM_KEYS = ["path", "value", "args", "timeout", "element", "quality", "schema", "y"]
METHODS = st.sampled_from(["add", "change", "set", "call", "remove", "fetch", "info", "ä", 'a"'])


def _spelt(key: str, escaped: bool) -> str:
    return f'"\\u{ord(key[0]):04x}{key[1:]}"' if escaped else json.dumps(key)


@st.composite
def _objects(draw: st.DrawFn, keys: list[str], inner: str) -> str:
    """Return an object with these keys, some perhaps twice and some spelt in an odd way."""
    members = []
    for key in draw(st.lists(st.sampled_from(keys), max_size=5, unique=draw(st.booleans()))):
        value = draw(VALUES)
        if key in ("method", "path") and draw(st.integers(0, 9)):
            value = json.dumps(draw(METHODS), ensure_ascii=draw(st.booleans()))
        elif key == "id" and draw(st.integers(0, 9)):
            value = draw(st.sampled_from(["1", '"q"', "null", "-0.5", "1e999"]))
        elif key == "params" and draw(st.integers(0, 9)):
            value = inner
        members.append(f"{_spelt(key, draw(st.integers(0, 19)) == 0)}:{value}")
    return "{" + draw(st.sampled_from([",", ",", " , "])).join(members) + "}"


@st.composite
def _texts_of_messages(draw: st.DrawFn) -> bytes:
    return draw(_objects(KEYS, draw(_objects(PARAM_KEYS, "{}")))).encode()


PIECES = st.sampled_from(
    [b'"', b"\\", b"\\ud83c", b"[", b"]", b"{", b"}", b",", b":", b" ", b"1", b"-", b"+", b"e", b"E", b"309", b"7" * 15]
)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """Return a message in which a few bytes were cut out, put in or replaced."""
    text = draw(_texts_of_messages() | st.sampled_from([row[0].encode() for row in MESSAGES.values()]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        some = draw(st.binary(max_size=2) | PIECES)
        text = text[:at] + some + text[at + draw(st.integers(0, 2)) :]
    return text


def _parts(found: Message | Refusal | MessageBatch) -> Any:
    """Return all that can be compared."""
    if isinstance(found, Refusal):
        return type(found.error), found.error.wire(), _parts(found.known)
    if isinstance(found, Message) and found.unreadable is not None:
        return type(found.unreadable), found.id, found.result, found.error
    return found


@needs_compiled
@given(text=st.binary(max_size=60) | _texts_of_messages() | _mutated())
@example(text=b'{"id":1,"method":"info"\xff}')
@example(text=b'{"method":"change","params":{"path":"a","value":"\\ud800\\u0041"}}')
@example(text=b'{"method":"change","params":{"path":"\\udc00"}}')
@example(text=b'{"method":"change","params":{"path":"a","value":"\xf4\x90\x80\x80"}}')
@example(text=b'{"method":"change","params":{"path":"a","value":"abcdefgh\x1f"}}')
def test_both_agree(text: bytes) -> None:
    """The compiled check and Python read every text alike, and refuse the same ones."""
    assert _parts(make_intake("compiled").read(text)) == _parts(make_intake("python").read(text))


@needs_compiled
@given(text=_texts_of_messages())
def test_the_compiled_check_takes_all_it_can(text: bytes) -> None:
    """A message that Python accepts needs a second look only for escapes, many keys or parameters in a list."""
    found = make_intake("python").read(text)
    if not isinstance(found, Message) or found.unreadable is not None:
        return
    if b"\\" not in text and not found.is_positional and found.body[:1] != b"[":
        assert read_compiled(text) == found


SCANS = {
    "python": (_texts.is_too_deep_in_python, _texts.count_outer_in_python, _texts.judge_numbers_in_python),
    "chosen": (_texts.is_too_deep, _texts.count_outer, _texts.judge_numbers),
}


@given(text=st.binary(max_size=50) | st.lists(PIECES, max_size=30).map(b"".join))
@example(text=b"7" * 21)
@example(text=b"1e309-")
def test_scans_agree_on_any_bytes(text: bytes) -> None:
    """Texts that are not JSON are scanned alike, too."""
    seen = [
        (is_too_deep(text, 3), count_outer(text, COMMA), count_outer(text, COLON), judge(text, 20))
        for is_too_deep, count_outer, judge in SCANS.values()
    ]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("scans", SCANS.values(), ids=SCANS)
@given(value=st.recursive(_small, lambda inner: st.lists(inner) | st.dictionaries(st.text('[,:"', max_size=3), inner)))
def test_members_are_counted(scans: Any, value: Any) -> None:
    """Members of the outermost brackets are counted; commas and colons elsewhere are not."""
    _, count_outer, _ = scans
    assume(isinstance(value, dict | list))
    text = json.dumps(value).encode()
    assert count_outer(text, COMMA) == max(0, len(value) - 1)
    assert count_outer(text, COLON) == (len(value) if isinstance(value, dict) else 0)


@pytest.mark.parametrize("size", [1, 7, 12, 13, 100, 207, 208])
@pytest.mark.parametrize("scans", SCANS.values(), ids=SCANS)
def test_lists_of_numbers(scans: Any, size: int) -> None:
    """Many numbers side by side are not taken for a long one, and none is missed among them."""
    _, _, judge = scans
    many = b",".join([b"1" * size] * (4_000 // size))
    assert judge(b"[" + many + b"]", 400) == 0
    assert judge(b"[" + many + b",1e309," + many + b"]", 400) == TOO_BIG
    assert judge(b"[" + many + b",1e309," + b"1" * 401 + b"]", 400) == TOO_LONG


# Binary messages.


def test_json_in_binary_messages() -> None:
    """JSON values and options of binary messages are checked as JSON messages are; other types have no numbers."""
    reader, key = make_intake(), binary.encode_key("a")
    fine = key + binary.encode_json_body(b"[1.5e3]")
    assert reader.read_pair(fine, 0) == ("a", len(key), len(fine))
    assert reader.read_payload(fine, 0, binary.ADD_STATE) == (["a", fine[len(key) :]], b"")
    for number, error in ((b"1e309", NumberTooBig), (b"1" * 401, NumberTooLong)):
        body, text = binary.encode_json_body(b"[%b]" % number), binary.encode_body(binary.TEXT, number)
        assert reader.read_pair(key + text, 0)[0] == "a"
        with pytest.raises(error):
            reader.read_pair(key + body, 0)
        with pytest.raises(error):
            reader.read_payload(key + body, 0, binary.ADD_STATE)
        with pytest.raises(error):
            reader.read_payload(fine + binary.encode_json_body(b'{"timeout":%b}' % number), 0, binary.SET_STATE)


def test_responses_of_binary_owners() -> None:
    """The response of a binary owner is checked, whether it has a value or an error."""
    reader, request_id = make_intake(), binary.encode_number(1)
    reader.check_response(binary.encode_response(request_id))
    reader.check_response(binary.encode_response(request_id, binary.encode_json_body(b"1e308")))
    with pytest.raises(NumberTooBig):
        reader.check_response(binary.encode_response(request_id, binary.encode_json_body(b"1e309")))
    with pytest.raises(binary.BadFrame):
        reader.check_response(b"\3" + request_id + b"\7")
