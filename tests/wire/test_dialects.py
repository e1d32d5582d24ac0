"""The dialects: the bytes of each event and routed request, as one table a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from jetbus.wire.dialects import (
    BINARY,
    CLASSIC,
    LEGACY,
    LEGACY_POSITIONAL,
    NODE_JET_3,
    Dialect,
    encode_legacy_element,
)
from jetbus.wire.jsonrpc import Params
from jetbus.wire.legacy import VALUELESS

DIALECTS = {dialect.name: dialect for dialect in (CLASSIC, NODE_JET_3, LEGACY, LEGACY_POSITIONAL, BINARY)}


@dataclass
class Leaf:
    path_json: bytes
    value: bytes | None
    schema: bytes | None = None
    others: Mapping[str, bytes] = field(default_factory=dict)
    body: bytes = b"\x01\x04\x00\x00\x001.50"
    key: bytes = b"\x03\x00a/b"


STATE = Leaf(b'"a/b"', b"1.50")
METHOD = Leaf(b'"a/m"', None)
DESCRIBED = Leaf(b'"a/b"', b"1", b'"a number"')
DESCRIBED_METHOD = Leaf(b'"a/m"', None, b'"stops"')

_CLASSIC_EVENTS = {
    "add": (STATE, "add", False, '{"path":"a/b","event":"add","value":1.50}'),
    "change": (STATE, "change", False, '{"path":"a/b","event":"change","value":1.50}'),
    "remove": (STATE, "remove", False, '{"path":"a/b","event":"remove","value":1.50}'),
    "add fetchOnly": (STATE, "add", True, '{"path":"a/b","event":"add","value":1.50,"fetchOnly":true}'),
    "change fetchOnly": (STATE, "change", True, '{"path":"a/b","event":"change","value":1.50}'),
    "remove fetchOnly": (STATE, "remove", True, '{"path":"a/b","event":"remove","value":1.50}'),
    "add method": (METHOD, "add", False, '{"path":"a/m","event":"add"}'),
    "remove method": (METHOD, "remove", False, '{"path":"a/m","event":"remove"}'),
    "add method fetchOnly": (METHOD, "add", True, '{"path":"a/m","event":"add","fetchOnly":true}'),
    "schema is not told": (DESCRIBED, "add", False, '{"path":"a/b","event":"add","value":1}'),
    "null": (Leaf(b'"n"', b"null"), "add", False, '{"path":"n","event":"add","value":null}'),
}
_NODE_JET_3_EVENTS = {
    name: (
        leaf,
        kind,
        only,
        params.replace('"add"', '"Add"').replace('"change"', '"Change"').replace('"remove"', '"Remove"'),
    )
    for name, (leaf, kind, only, params) in _CLASSIC_EVENTS.items()
}
_LEGACY_EVENTS = {
    "add": (STATE, "add", False, '{"event":"add","path":"a/b","data":{"type":"state","value":1.50}}'),
    "change": (STATE, "change", False, '{"event":"change","path":"a/b","data":{"value":1.50}}'),
    "remove": (STATE, "remove", False, '{"event":"remove","path":"a/b","data":{"type":"state","value":1.50}}'),
    "fetchOnly is not told": (
        STATE,
        "add",
        True,
        '{"event":"add","path":"a/b","data":{"type":"state","value":1.50}}',
    ),
    "add method": (METHOD, "add", False, '{"event":"add","path":"a/m","data":{"type":"method"}}'),
    "remove method": (METHOD, "remove", False, '{"event":"remove","path":"a/m","data":{"type":"method"}}'),
    "add with schema": (
        DESCRIBED,
        "add",
        False,
        '{"event":"add","path":"a/b","data":{"type":"state","schema":"a number","value":1}}',
    ),
    "add method with schema": (
        DESCRIBED_METHOD,
        "add",
        False,
        '{"event":"add","path":"a/m","data":{"type":"method","schema":"stops"}}',
    ),
    "change with schema": (DESCRIBED, "change", False, '{"event":"change","path":"a/b","data":{"value":1}}'),
}
EVENTS = [
    pytest.param(dialect, *row, id=f"{dialect.name}: {name}")
    for dialect, rows in (
        (CLASSIC, _CLASSIC_EVENTS),
        (NODE_JET_3, _NODE_JET_3_EVENTS),
        (LEGACY, _LEGACY_EVENTS),
        (LEGACY_POSITIONAL, _LEGACY_EVENTS),
    )
    for name, row in rows.items()
]


@pytest.mark.parametrize(("dialect", "leaf", "kind", "fetch_only", "params"), EVENTS)
def test_events(dialect: Dialect, leaf: Leaf, kind: str, fetch_only: bool, params: str) -> None:
    """An event in the words of the dialect, values byte by byte as their owner sent them."""
    tail = dialect.encode_tail(kind, leaf, fetch_only)
    assert tail == f'"params":{params}}}'.encode()
    msgspec.json.decode(b'{"method":"f",' + tail)


@pytest.mark.parametrize("dialect", [CLASSIC, NODE_JET_3], ids=["classic", "node-jet 3"])
def test_short_cut_of_a_change(dialect: Dialect) -> None:
    """The short cut for a change gives the bytes of the long way."""
    short = b'"params":{"path":' + STATE.path_json + dialect.changed + b"1.50}}"
    assert short == dialect.encode_tail("change", STATE, False)


SET = Params(path="a/b", value=b"1.50")
SET_ALL = Params(path="a/b", value=b"null", valueAsResult=b"true", timeout=b"2")
SET_NOT_AS_RESULT = Params(path="a/b", value=b"3", valueAsResult=b"false")
CALL = Params(path="a/m")
CALL_LIST = Params(path="a/m", args=b"[1,2]")
CALL_EMPTY = Params(path="a/m", args=b"[]")
CALL_OBJECT = Params(path="a/m", args=b'{"x":1}', timeout=b"0.5")

_CLASSIC_CALLS = {
    "call": ("call", CALL, '"method":"a/m","params":{}}'),
    "call with a list": ("call", CALL_LIST, '"method":"a/m","params":[1,2]}'),
    "call with an empty list": ("call", CALL_EMPTY, '"method":"a/m","params":[]}'),
    "call with an object": ("call", CALL_OBJECT, '"method":"a/m","params":{"x":1}}'),
}
_CLASSIC_ROUTES = {
    "set": ("set", SET, '"method":"a/b","params":{"value":1.50}}'),
    "set with all": ("set", SET_ALL, '"method":"a/b","params":{"value":null,"valueAsResult":true}}'),
    "set without result": ("set", SET_NOT_AS_RESULT, '"method":"a/b","params":{"value":3}}'),
    **_CLASSIC_CALLS,
}
_NODE_JET_3_ROUTES = {
    "set": ("set", SET, '"method":"set","params":{"path":"a/b","value":1.50}}'),
    "set with all": (
        "set",
        SET_ALL,
        '"method":"set","params":{"path":"a/b","value":null,"valueAsResult":true,"timeout":2}}',
    ),
    "call": ("call", CALL, '"method":"call","params":{"path":"a/m"}}'),
    "call with a list": ("call", CALL_LIST, '"method":"call","params":{"path":"a/m","args":[1,2]}}'),
    "call with an object": (
        "call",
        CALL_OBJECT,
        '"method":"call","params":{"path":"a/m","args":{"x":1},"timeout":0.5}}',
    ),
}
_POSITIONAL_ROUTES = {
    "set": ("set", SET, '"method":"a/b","params":[1.50]}'),
    "set with all": ("set", SET_ALL, '"method":"a/b","params":[null]}'),
    **_CLASSIC_CALLS,
}
ROUTES = [
    pytest.param(dialect, *row, id=f"{dialect.name}: {name}")
    for dialect, rows in (
        (CLASSIC, _CLASSIC_ROUTES),
        (NODE_JET_3, _NODE_JET_3_ROUTES),
        (LEGACY, _CLASSIC_ROUTES),
        (LEGACY_POSITIONAL, _POSITIONAL_ROUTES),
    )
    for name, row in rows.items()
]


@pytest.mark.parametrize(("dialect", "kind", "params", "routed"), ROUTES)
def test_routed_requests(dialect: Dialect, kind: str, params: Params, routed: str) -> None:
    """A set or call as the owner's dialect wants it."""
    leaf = STATE if kind == "set" else METHOD
    tail = dialect.encode_route(kind, leaf, params)
    assert tail == routed.encode()
    msgspec.json.decode(b'{"id":"r1",' + tail)


FACTS: dict[str, tuple[bytes, bytes, bool, bool, bool]] = {
    "classic": (b"true", b'"r7"', True, False, True),
    "node-jet 3": (b"true", b'"7"', False, False, False),
    "legacy": (b"{}", b'"r7"', True, True, False),
    "legacy, positional": (b"{}", b'"r7"', True, True, False),
    "binary": (b"", b"\x07\x00\x00\x00", True, False, True),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_a_dialect(name: str) -> None:
    """Results, numbers of routes, and support of methods, nodes and sorted lists by each dialect."""
    dialect = DIALECTS[name]
    received = (
        dialect.done,
        dialect.route_id(7),
        dialect.has_methods,
        dialect.has_nodes,
        dialect.sorts,
    )
    assert received == FACTS[name]


def test_nodes_of_2012() -> None:
    """A node comes and goes as an element of its own type."""
    assert LEGACY.encode_node("add", "a") == b'"params":{"event":"add","path":"a","data":{"type":"node"}}}'
    assert LEGACY.encode_node("remove", "a") == b'"params":{"event":"remove","path":"a","data":{"type":"node"}}}'


def test_elements_of_2012() -> None:
    """A leaf is a state with its value or a method, either with its schema, a text, and what else it was added with."""
    assert encode_legacy_element(STATE) == b'{"type":"state","value":1.50}'
    assert encode_legacy_element(DESCRIBED) == b'{"type":"state","schema":"a number","value":1}'
    assert encode_legacy_element(METHOD) == b'{"type":"method"}'
    assert encode_legacy_element(Leaf(b'"a"', VALUELESS)) == b'{"type":"state"}'
    assert encode_legacy_element(Leaf(b'"a"', b"null")) == b'{"type":"state","value":null}'
    assert (
        encode_legacy_element(Leaf(b'"a"', b"1", b'{"min":0}'))
        == b'{"type":"state","schema":"{\\"min\\":0}","value":1}'
    )
    assert encode_legacy_element(Leaf(b'"a"', None, None, {"by": b"1"})) == b'{"type":"method","by":1}'


@pytest.mark.parametrize("dialect", [LEGACY, LEGACY_POSITIONAL], ids=["named", "positional"])
def test_error_words_of_2012(dialect: Dialect) -> None:
    """Errors have the words of the day, where there were any."""
    assert dialect.error_keys["pathNotExists"] == "invalid_path"
    assert dialect.error_keys["missingParam"] == "missing_param"
    assert CLASSIC.error_keys == {}
