"""Dialects of Jet: their differences as one table.

    classic      lua-jet, node-jet 1 and 2, cjet and the C++ peers
    node-jet 3   other names of events, other form of routed requests
    legacy       the dialect of 2012, with nodes and ``data``; there is a variant with positional parameters
    binary       the binary protocol

The bus has one add, one change and one fetch, and takes the bytes for a peer from the dialect of that peer. A new
dialect needs one row and the functions it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from jetbus.json_types import Json
from jetbus.wire import binary, jsonrpc, legacy
from jetbus.wire.jsonrpc import Params

TRUE = b"true"
NO_MEMBERS: Mapping[str, bytes] = MappingProxyType({})
"""Members of an element without a description."""
_EMPTY = b"{}"
_FETCH_ONLY = b',"fetchOnly":true'
_NODE = b'{"type":"node"}'


class Leaf(Protocol):
    """A state or method as dialects encode it. Methods are without a value."""

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
"""Function from event kind, leaf and fetchOnly to the tail of a notification, which follows the fetch id."""
NodeTail = Callable[[str, str], bytes]
"""Function from event kind and path to the tail of the notification of a node."""
Route = Callable[[str, Leaf, Params], bytes]
"""Function from ``set`` or ``call``, leaf and parameters to the tail of a routed request, which follows the id."""


class Heads(NamedTuple):
    """Bytes before the tail of a routed request: ``start``, id, ``on``; or ``alone`` without an id."""

    start: bytes
    on: bytes
    alone: bytes


def _failure(request_id: bytes, error: Mapping[str, Json]) -> bytes:
    return jsonrpc.encode_failure(request_id, jsonrpc.encode(error))


def _describe_request(message: bytes) -> Any:
    """Return the parameters of a request, for the error about an owner that did not respond in time."""
    return jsonrpc.decode_envelope(message).params


@dataclass(frozen=True, slots=True)
class Dialect:
    """A row of the table."""

    name: str
    encode_tail: Tail
    encode_route: Route
    encode_node: NodeTail
    changed: bytes
    """Bytes between path and value in a change, from which the bus composes this most frequent event directly."""
    done: bytes = b"true"
    """Result of add, remove, change, fetch, unfetch and config."""
    encode_result: Callable[[bytes, bytes], bytes] = jsonrpc.encode_result
    """Function from request id and result as JSON to the response."""
    encode_failure: Callable[[bytes, Mapping[str, Json]], bytes] = _failure
    """Function from request id and error to the response."""
    route_id: Callable[[int], bytes] = b'"r%d"'.__mod__
    """Function from a count to the id of a routed request."""
    heads: Heads = Heads(b'{"id":', b",", b"{")
    describe_request: Callable[[bytes], Any] = _describe_request
    is_binary: bool = False
    has_methods: bool = True
    has_nodes: bool = False
    tail_end: bytes = b"}}"
    """End of the tail of an event, before which further members are inserted."""
    sorts: bool = True
    error_keys: Mapping[str, str] = field(default_factory=dict)
    """Names that the dialect has for keys of error data."""


# -- classic and node-jet 3: {"path", "event", "value", "fetchOnly"} -------------------------------------------------


def _tail_by_names(names: Mapping[str, str]) -> Tail:
    # Encoded once, since a tail is made for every event.
    middles = {kind: b',"event":"%b"' % name.encode() for kind, name in names.items()}

    def tail(kind: str, leaf: Leaf, fetch_only: bool) -> bytes:
        # Clients learn fetchOnly from add; tests of node-jet 1 compare its other events member by member.
        value, end = leaf.value, _FETCH_ONLY + b"}}" if fetch_only and kind == "add" else b"}}"
        if value is None:
            return b"".join((b'"params":{"path":', leaf.path_json, middles[kind], end))
        return b"".join((b'"params":{"path":', leaf.path_json, middles[kind], b',"value":', value, end))

    return tail


def _node_by_names(names: Mapping[str, str]) -> NodeTail:
    def tail(kind: str, node: str) -> bytes:
        return b'"params":{"path":%b,"event":"%b","type":"node"}}' % (jsonrpc.encode(node), names[kind].encode())

    return tail


def _args_or_empty(params: Params) -> bytes:
    return params.args or _EMPTY


def _route_classic(kind: str, leaf: Leaf, params: Params) -> bytes:
    if kind == "call":
        return b"".join((b'"method":', leaf.path_json, b',"params":', params.args or _EMPTY, b"}"))
    end = b',"valueAsResult":true}}' if params.valueAsResult == TRUE else b"}}"
    return b"".join((b'"method":', leaf.path_json, b',"params":{"value":', params.value, end))


def _route_node_jet_3(kind: str, leaf: Leaf, params: Params) -> bytes:
    members = {
        "value": params.value,
        "args": params.args,
        "valueAsResult": params.valueAsResult,
        "timeout": params.timeout,
    }
    # Members that the requester left out stay out: an owner may tell null from missing.
    inner = b"".join(b',"%b":%b' % (name.encode(), raw) for name, raw in members.items() if raw)
    return b'"method":"%b","params":{"path":%b%b}}' % (kind.encode(), leaf.path_json, inner)


# -- legacy: {"event", "path", "data"}


def encode_legacy_element(leaf: Leaf) -> bytes:
    """Encode a leaf as an ``element`` of 2012: its type, then schema, value and other members if it has them."""
    members = [b'"type":"method"' if leaf.value is None else b'"type":"state"']
    schema = leaf.schema
    if schema is not None:
        members.append(b'"schema":' + legacy.schema_text(schema))
    # Compared by identity: a state without a value is not the same as one whose value is null.
    if leaf.value is not None and leaf.value is not legacy.VALUELESS:
        members.append(b'"value":' + leaf.value)
    members += [jsonrpc.encode(name) + b":" + value for name, value in leaf.others.items()]
    return b"{" + b",".join(members) + b"}"


def encode_legacy_tail(kind: str, path_json: bytes, data: bytes) -> bytes:
    """Encode the tail of an event of 2012."""
    return b'"params":{"event":"%b","path":%b,"data":%b}}' % (kind.encode(), path_json, data)


def _node_legacy(kind: str, node: str) -> bytes:
    return encode_legacy_tail(kind, jsonrpc.encode(node), _NODE)


def _tail_legacy(kind: str, leaf: Leaf, _fetch_only: bool) -> bytes:
    if kind == "change" and leaf.value is not None:
        return encode_legacy_tail(kind, leaf.path_json, b'{"value":' + leaf.value + b"}")
    return encode_legacy_tail(kind, leaf.path_json, encode_legacy_element(leaf))


def _route_legacy(kind: str, leaf: Leaf, params: Params) -> bytes:
    inner = _args_or_empty(params) if kind == "call" else b"[" + params.value + b"]"
    return b'"method":' + leaf.path_json + b',"params":' + inner + b"}"


# -- binary


def _tail_binary(_kind: str, leaf: Leaf, _fetch_only: bool) -> bytes:
    return leaf.key + leaf.body


def _route_binary(kind: str, leaf: Leaf, params: Params) -> bytes:
    if kind == "call":
        args = binary.from_json(params.args) if params.args else binary.EMPTY_BODY
        return bytes((binary.CALL_METHOD,)) + leaf.key + args
    # The owner receives the type that its state has now, not that of the JSON that the peer sends.
    value = binary.from_json(params.value, leaf.body[0])
    options = binary.VALUE_AS_RESULT if params.valueAsResult == TRUE else b""
    return bytes((binary.SET_STATE,)) + leaf.key + value + options


def _result_binary(request_id: bytes, result: bytes) -> bytes:
    return binary.encode_response(request_id, binary.encode_json_body(result) if result else b"")


def _route_id_binary(count: int) -> bytes:
    return binary.encode_number((count - 1) % 0xFFFFFFFF + 1)


def _describe_binary_request(frame: bytes) -> Any:
    return {"path": binary.read_key(frame, binary.PAYLOAD_AT)[0]}


def _node_binary(_kind: str, node: str) -> bytes:
    return binary.encode_key(node) + binary.EMPTY_BODY


# -- the table

_NAMES = {"add": "add", "change": "change", "remove": "remove"}
_NODE_JET_3_NAMES = {"add": "Add", "change": "Change", "remove": "Remove"}

CLASSIC = Dialect(
    name="classic",
    encode_tail=_tail_by_names(_NAMES),
    encode_node=_node_by_names(_NAMES),
    changed=b',"event":"change","value":',
    encode_route=_route_classic,
)
NODE_JET_3 = Dialect(
    name="node-jet 3",
    encode_tail=_tail_by_names(_NODE_JET_3_NAMES),
    encode_node=_node_by_names(_NODE_JET_3_NAMES),
    changed=b',"event":"Change","value":',
    encode_route=_route_node_jet_3,
    route_id=b'"%d"'.__mod__,
    has_methods=False,
    sorts=False,
)
LEGACY = Dialect(
    name="legacy",
    encode_tail=_tail_legacy,
    encode_node=_node_legacy,
    changed=b"",
    encode_route=_route_classic,
    done=b"{}",
    has_nodes=True,
    tail_end=b"}}}",
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
    encode_tail=_tail_legacy,
    encode_node=_node_legacy,
    changed=b"",
    encode_route=_route_legacy,
    done=b"{}",
    has_nodes=True,
    tail_end=b"}}}",
    sorts=False,
    error_keys=LEGACY.error_keys,
)
BINARY = Dialect(
    name="binary",
    encode_tail=_tail_binary,
    encode_node=_node_binary,
    changed=b"",
    encode_route=_route_binary,
    done=b"",
    encode_result=_result_binary,
    encode_failure=binary.encode_error,
    route_id=_route_id_binary,
    heads=Heads(bytes((binary.REQUEST,)), b"", bytes((binary.EVENT,))),
    describe_request=_describe_binary_request,
    is_binary=True,
)
