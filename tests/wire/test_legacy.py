"""Requests of 2012 read into today's parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from jetbus.errors import Invalid, MissingParam, WrongCount, WrongType
from jetbus.wire.legacy import VALUELESS, LegacyElement, name_params, read_post

NAMED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "add": ("add", '["a",{"type":"state"}]', {"path": "a", "element": {"type": "state"}}),
    "remove": ("remove", '["a"]', {"path": "a"}),
    "set": ("set", '["a",null]', {"path": "a", "value": None}),
    "change": ("change", '["a",1]', {"path": "a", "value": 1}),
    "notify": ("notify", '["a",{"value":1}]', {"path": "a", "notification": {"value": 1}}),
    "post": ("post", '["a",{"value":1}]', {"path": "a", "notification": {"value": 1}}),
    "fetch": ("fetch", '["f",".*"]', {"id": "f", "matcher": ".*"}),
    "unfetch": ("unfetch", "[7]", {"id": 7}),
    "call with a list": ("call", '["m",[1,2]]', {"path": "m", "args": [1, 2]}),
    "call with an empty list": ("call", '["m",[]]', {"path": "m", "args": []}),
    "call with an object": ("call", '["m",{"x":1}]', {"path": "m", "args": {"x": 1}}),
    "call with one argument": ("call", '["m",5]', {"path": "m", "args": [5]}),
    "call with one text": ("call", '["m","x"]', {"path": "m", "args": ["x"]}),
    "call with arguments": ("call", '["m",1,"x",null]', {"path": "m", "args": [1, "x", None]}),
    "call with lists": ("call", '["m",[1],[2]]', {"path": "m", "args": [[1], [2]]}),
    "call without arguments": ("call", '["m"]', {"path": "m", "args": []}),
}


@pytest.mark.parametrize(("method", "given", "named"), NAMED.values(), ids=NAMED)
def test_positions_get_names(method: str, given: str, named: dict[str, Any]) -> None:
    """Positional parameters are the named ones in a fixed order; call takes its arguments in two forms."""
    assert json.loads(bytes(name_params(method, Raw(given.encode())))) == named


def test_values_stay_as_they_are() -> None:
    """Numbers keep their digits on the way."""
    assert b"1.500" in bytes(name_params("set", Raw(b'["a",1.500]')))
    assert b"[12345678901234567890123]" in bytes(name_params("call", Raw(b'["m",12345678901234567890123]')))


MISCOUNTED: dict[str, tuple[str, str, str]] = {
    "add without element": ("add", '["a"]', "[path,element]"),
    "add with too much": ("add", '["a",{},1]', "[path,element]"),
    "remove nothing": ("remove", "[]", "[path]"),
    "set without value": ("set", '["a"]', "[path,value]"),
    "fetch without matcher": ("fetch", '["f"]', "[id,matcher]"),
    "call nothing": ("call", "[]", "[path,args]"),
    "post without notification": ("post", '["a"]', "[path,notification]"),
}


@pytest.mark.parametrize(("method", "given", "expected"), MISCOUNTED.values(), ids=MISCOUNTED)
def test_wrong_number_of_parameters(method: str, given: str, expected: str) -> None:
    """Too few or too many parameters are refused, saying which ones are expected."""
    with pytest.raises(WrongCount) as refused:
        name_params(method, Raw(given.encode()))
    assert refused.value.wire()["code"] == -32602
    assert refused.value.wire()["data"] == {"expected": expected}


@pytest.mark.parametrize("method", ["get", "info", "authenticate", "nonsense"])
def test_modern_services_have_no_positions(method: str) -> None:
    """A service that 2012 did not know takes no list."""
    with pytest.raises(WrongType):
        name_params(method, Raw(b'["a"]'))


ELEMENTS: dict[str, tuple[str, bytes | None, bytes | None, dict[str, bytes]]] = {
    "state": ('{"type":"state","value":1.50}', b"1.50", None, {}),
    "state with null": ('{"type":"state","value":null}', b"null", None, {}),
    "state without value": ('{"type":"state"}', VALUELESS, None, {}),
    "state with schema": ('{"type":"state","value":1,"schema":"a number"}', b"1", b'"a number"', {}),
    "method": ('{"type":"method"}', None, None, {}),
    "method with schema": ('{"type":"method","schema":""}', None, b'""', {}),
    "method with a value": ('{"type":"method","value":1}', None, None, {}),
    "schema is an object": ('{"type":"state","schema":{"min":0},"value":1}', b"1", b'{"min":0}', {}),
    "other members": ('{"unit":"K","type":"state","a":[1, 2],"value":1}', b"1", None, {"unit": b'"K"', "a": b"[1, 2]"}),
}


@pytest.mark.parametrize(("given", "value", "schema", "others"), ELEMENTS.values(), ids=ELEMENTS)
def test_elements(given: str, value: bytes | None, schema: bytes | None, others: dict[str, bytes]) -> None:
    """An element is a state, perhaps without a value, or a method; either may have a schema and other members."""
    element = LegacyElement(Raw(given.encode()))
    assert element.is_method is (value is None)
    assert (element.value, element.schema, element.others) == (value, schema, others)
    assert (element.value is VALUELESS) is (value is VALUELESS)


NO_ELEMENTS: dict[str, tuple[str, type[Exception], str]] = {
    "no type": ('{"value":1}', MissingParam, "element.type"),
    "unknown type": ('{"type":"node"}', WrongType, "element.type"),
    "type is a number": ('{"type":1}', WrongType, "element.type"),
    "schema is a list": ('{"type":"state","schema":[0]}', WrongType, "element.schema"),
    "schema is null": ('{"type":"method","schema":null}', WrongType, "element.schema"),
    "a number": ("5", WrongType, "element"),
    "a list": ("[]", WrongType, "element"),
    "null": ("null", WrongType, "element"),
}


@pytest.mark.parametrize(("given", "error", "subject"), NO_ELEMENTS.values(), ids=NO_ELEMENTS)
def test_no_elements(given: str, error: type[Invalid], subject: str) -> None:
    """Elements that are neither states nor methods are refused."""
    with pytest.raises(error) as refused:
        LegacyElement(Raw(given.encode()))
    assert refused.value.subject == subject


def test_type_in_other_letters() -> None:
    """A type spelt with escapes is the same type."""
    assert LegacyElement(Raw(b'{"type":"st\\u0061te","value":1}')).value == b"1"


POSTS: dict[str, tuple[str, bytes, bytes | None, bytes]] = {
    "today's form": ('{"path":"a","event":"change","data":{"value":5}}', b"5", None, b'{"value":5}'),
    "without event": ('{"path":"a","data":{"value":5}}', b"5", None, b'{"value":5}'),
    "notification as data": ('{"path":"a","notification":{"value":5}}', b"5", None, b'{"value":5}'),
    "notification with data": (
        '{"path":"a","notification":{"event":"change","data":{"value":5}}}',
        b"5",
        None,
        b'{"value":5}',
    ),
    "schema only": ('{"path":"a","data":{"schema":"x"}}', b"", b'"x"', b'{"schema":"x"}'),
    "value and schema": (
        '{"path":"a","data":{"value":1,"schema":"x"}}',
        b"1",
        b'"x"',
        b'{"value":1,"schema":"x"}',
    ),
    "schema is an object": (
        '{"path":"a","data":{"schema":{"min":0}}}',
        b"",
        b'{"min":0}',
        b'{"schema":"{\\"min\\":0}"}',
    ),
    "other fields": ('{"path":"a","data":{"unit":"K"}}', b"", None, b'{"unit":"K"}'),
}


@pytest.mark.parametrize(("given", "value", "schema", "data"), POSTS.values(), ids=POSTS)
def test_posts(given: str, value: bytes, schema: bytes | None, data: bytes) -> None:
    """A post tells which fields of a state changed; its data are passed on as they are."""
    post = read_post(Raw(given.encode()))
    assert post.path == "a"
    assert bytes(post.value) == value
    assert post.schema == schema
    assert post.data == data


NO_POSTS: dict[str, tuple[str, type[Exception], str]] = {
    "no path": ('{"data":{"value":1}}', MissingParam, "path"),
    "path is a number": ('{"path":1,"data":{}}', WrongType, "path"),
    "no data": ('{"path":"a"}', MissingParam, "data"),
    "no data in notification": ('{"path":"a","notification":{"event":"change"}}', MissingParam, "data"),
    "data is a number": ('{"path":"a","data":1}', WrongType, "data"),
    "schema is a list": ('{"path":"a","data":{"schema":[]}}', WrongType, "data.schema"),
    "notification is a number": ('{"path":"a","notification":1}', WrongType, "notification"),
    "event add": ('{"path":"a","event":"add","data":{}}', Invalid, "event"),
    "event remove in notification": (
        '{"path":"a","notification":{"event":"remove","data":{}}}',
        Invalid,
        "event",
    ),
    "params are a list": ("[]", WrongType, "params"),
}


@pytest.mark.parametrize(("given", "error", "subject"), NO_POSTS.values(), ids=NO_POSTS)
def test_no_posts(given: str, error: type[Invalid], subject: str) -> None:
    """A post needs a path and data, and tells nothing but changes."""
    with pytest.raises(error) as refused:
        read_post(Raw(given.encode()))
    assert refused.value.subject == subject
