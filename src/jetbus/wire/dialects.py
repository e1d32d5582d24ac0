"""What differs between the dialects of Jet, as one table: how events look, how requests reach an owner, what success
is.

Classic is what lua-jet, node-jet 1 and 2, cjet and the C++ peers speak; node-jet 3 has other event names and routed
requests; legacy is the dialect of 2012 with nodes and ``data``; binary is no JSON at all. The bus has one add, one
change and one fetch: it asks the dialect of whoever is told for the bytes. Adding a dialect is one row and the
functions it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from msgspec import Raw

from jetbus.wire import binary, jsonrpc, legacy
from jetbus.wire.jsonrpc import Params

TRUE = Raw(b"true")
NO_MEMBERS: Mapping[str, bytes] = MappingProxyType({})
"""What describes an element that nobody has described."""
_EMPTY = Raw(b"{}")
_FETCH_ONLY = b',"fetchOnly":true'
_NODE = b'{"type":"node"}'


class Leaf(Protocol):
    """What a dialect reads of a state or method. A method has no value."""

    @property
    def path_json(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def schema(self) -> bytes | None: ...

    @property
    def others(self) -> Mapping[str, bytes]: ...

    @property
    def key(self) -> bytes: ...

    @property
    def body(self) -> bytes: ...


Tail = Callable[[str, Leaf, bool], bytes]
"""Event kind, leaf, fetchOnly -> what follows the fetch id in a notification."""
Route = Callable[[str, Leaf, Params], bytes]
"""``set`` or ``call``, leaf, the request's parameters -> what follows the route id in a routed request."""


class Heads(NamedTuple):
    """What stands before the tail of a routed request: ``start``, the route's id, ``on``; ``alone`` without an id."""

    start: bytes
    on: bytes
    alone: bytes


def _failure(request_id: bytes, error: dict[str, Any]) -> bytes:
    return jsonrpc.failure(request_id, jsonrpc.encode(error))


def _timed_out(message: bytes) -> Any:
    """What an error shows of a request that was not answered in time."""
    return jsonrpc.decode_envelope(message).params


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row of the table."""

    name: str
    tail: Tail
    route: Route
    changed: bytes
    """What stands between path and value in a change; the busiest event is put together from it directly."""
    done: bytes = b"true"
    """The result of add, remove, change, fetch, unfetch and config."""
    result: Callable[[bytes, bytes], bytes] = jsonrpc.result
    """Request id, result as JSON -> the response."""
    failure: Callable[[bytes, dict[str, Any]], bytes] = _failure
    """Request id, error -> the response."""
    route_id: Callable[[int], bytes] = b'"r%d"'.__mod__
    """How requests are numbered towards an owner."""
    heads: Heads = Heads(b'{"id":', b",", b"{")
    asked: Callable[[bytes], Any] = _timed_out
    is_binary: bool = False
    tells_methods: bool = True
    tells_nodes: bool = False
    tells_schema: bool = False
    """Whether a change of what describes an element is an event."""
    sorts: bool = True
    error_keys: Mapping[str, str] = field(default_factory=dict)
    """The dialect's own names for keys of error data."""


# -- classic and node-jet 3: {"path", "event", "value", "fetchOnly"} -------------------------------------------------


def _tail_by_names(names: Mapping[str, str]) -> Tail:
    middles = {kind: b',"event":"%b"' % name.encode() for kind, name in names.items()}

    def tail(kind: str, leaf: Leaf, fetch_only: bool) -> bytes:
        # Clients learn fetchOnly from add; tests of node-jet 1 compare its other events member by member.
        value, end = leaf.value, _FETCH_ONLY + b"}}" if fetch_only and kind == "add" else b"}}"
        if value is None:
            return b"".join((b'"params":{"path":', leaf.path_json, middles[kind], end))
        return b"".join((b'"params":{"path":', leaf.path_json, middles[kind], b',"value":', value, end))

    return tail


def _given_args(params: Params) -> bytes:
    return bytes(params.args or _EMPTY)


def _route_classic(kind: str, leaf: Leaf, params: Params) -> bytes:
    if kind == "call":
        return b"".join((b'"method":', leaf.path_json, b',"params":', params.args or _EMPTY, b"}"))
    end = b',"valueAsResult":true}}' if params.valueAsResult == TRUE else b"}}"
    return b"".join((b'"method":', leaf.path_json, b',"params":{"value":', params.value, end))


def _route_node_jet_3(kind: str, leaf: Leaf, params: Params) -> bytes:
    given = {
        "value": params.value,
        "args": params.args,
        "valueAsResult": params.valueAsResult,
        "timeout": params.timeout,
    }
    inner = b"".join(b',"%b":%b' % (name.encode(), bytes(raw)) for name, raw in given.items() if raw)
    return b'"method":"%b","params":{"path":%b%b}}' % (kind.encode(), leaf.path_json, inner)


def with_schema(tail: bytes, schema: bytes | None) -> bytes:
    """The tail of an event with the schema of its element, if that has one."""
    return tail if schema is None else tail[:-2] + b',"schema":' + schema + b"}}"


def _tail_with_schema(kind: str, leaf: Leaf, fetch_only: bool) -> bytes:
    tail = CLASSIC.tail(kind, leaf, fetch_only)
    return with_schema(tail, leaf.schema) if kind == "add" else tail


# -- legacy: {"event", "path", "data"}


def legacy_element(leaf: Leaf) -> bytes:
    """A leaf as an ``element`` of 2012: its type, then what it has of schema, value and other members."""
    members = [b'"type":"method"' if leaf.value is None else b'"type":"state"']
    schema = leaf.schema
    if schema is not None:
        members.append(b'"schema":' + legacy.as_text(schema))
    if leaf.value is not None and leaf.value is not legacy.VALUELESS:
        members.append(b'"value":' + leaf.value)
    members += [jsonrpc.encode(name) + b":" + value for name, value in leaf.others.items()]
    return b"{" + b",".join(members) + b"}"


def legacy_tail(kind: str, path_json: bytes, data: bytes) -> bytes:
    """A 2012 event with any data."""
    return b'"params":{"event":"%b","path":%b,"data":%b}}' % (kind.encode(), path_json, data)


def legacy_node(kind: str, path_json: bytes) -> bytes:
    """The event for a node that appeared or vanished."""
    return legacy_tail(kind, path_json, _NODE)


def _tail_legacy(kind: str, leaf: Leaf, _fetch_only: bool) -> bytes:
    if kind == "change" and leaf.value is not None:
        return legacy_tail(kind, leaf.path_json, b'{"value":' + leaf.value + b"}")
    return legacy_tail(kind, leaf.path_json, legacy_element(leaf))


def _route_legacy(kind: str, leaf: Leaf, params: Params) -> bytes:
    inner = _given_args(params) if kind == "call" else b"[" + bytes(params.value) + b"]"
    return b'"method":' + leaf.path_json + b',"params":' + inner + b"}"


# -- binary


def _tail_binary(_kind: str, leaf: Leaf, _fetch_only: bool) -> bytes:
    return leaf.key + leaf.body


def _route_binary(kind: str, leaf: Leaf, params: Params) -> bytes:
    if kind == "call":
        args = binary.body_of(bytes(params.args)) if params.args else binary.EMPTY_BODY
        return bytes((binary.CALL_METHOD,)) + leaf.key + args
    asked = binary.body_of(bytes(params.value), leaf.body[0])
    options = binary.VALUE_AS_RESULT if params.valueAsResult == TRUE else b""
    return bytes((binary.SET_STATE,)) + leaf.key + asked + options


def _result_binary(request_id: bytes, answer: bytes) -> bytes:
    return binary.response(request_id, binary.json_body(answer) if answer else b"")


def _route_id_binary(count: int) -> bytes:
    return binary.number((count - 1) % 0xFFFFFFFF + 1)


def _timed_out_binary(frame: bytes) -> Any:
    return {"path": binary.read_key(frame, binary.PAYLOAD_AT)[0]}


# -- the table

CLASSIC = Dialect(
    name="classic",
    tail=_tail_by_names({"add": "add", "change": "change", "remove": "remove"}),
    changed=b',"event":"change","value":',
    route=_route_classic,
)
CLASSIC_WITH_SCHEMA = Dialect(
    name="classic, schema",
    tail=_tail_with_schema,
    changed=b"",
    route=_route_classic,
    tells_schema=True,
)
"""Classic for fetches that ask for the schema, too."""
NODE_JET_3 = Dialect(
    name="node-jet 3",
    tail=_tail_by_names({"add": "Add", "change": "Change", "remove": "Remove"}),
    changed=b',"event":"Change","value":',
    route=_route_node_jet_3,
    route_id=b'"%d"'.__mod__,
    tells_methods=False,
    sorts=False,
)
LEGACY = Dialect(
    name="legacy",
    tail=_tail_legacy,
    changed=b"",
    route=_route_classic,
    done=b"{}",
    tells_nodes=True,
    tells_schema=True,
    sorts=False,
    error_keys={
        "pathNotExists": "invalid_path",
        "pathIsNotState": "path_is_not_state",
        "pathIsNotMethod": "path_is_not_method",
        "missingParam": "missing_param",
        "wrongType": "wrong_type",
    },
)
LEGACY_POSITIONAL = Dialect(
    name="legacy, positional",
    tail=_tail_legacy,
    changed=b"",
    route=_route_legacy,
    done=b"{}",
    tells_nodes=True,
    tells_schema=True,
    sorts=False,
    error_keys=LEGACY.error_keys,
)
BINARY = Dialect(
    name="binary",
    tail=_tail_binary,
    changed=b"",
    route=_route_binary,
    done=b"",
    result=_result_binary,
    failure=binary.failure,
    route_id=_route_id_binary,
    heads=Heads(bytes((binary.REQUEST,)), b"", bytes((binary.EVENT,))),
    asked=_timed_out_binary,
    is_binary=True,
)
