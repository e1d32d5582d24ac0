"""Requests of the dialect of 2012, converted to the parameters of the present services.

Peers of 2012 send positional parameters, ``element``, ``notify`` or ``post``, and ``matcher``. Nothing else identifies
them, so a request is recognized by its shape.
"""

from __future__ import annotations

import re

from msgspec import Raw

from jetbus.errors import Invalid, InvalidRequest, MissingParam, WrongCount, WrongType
from jetbus.wire.jsonrpc import ABSENT, Envelope, decode_members, encode, read_fields, read_method, read_text

POSITIONS: dict[str, tuple[str, ...]] = {
    "add": ("path", "element"),
    "call": ("path", "args"),
    "remove": ("path",),
    "set": ("path", "value"),
    "change": ("path", "value"),
    "notify": ("path", "notification"),
    "post": ("path", "notification"),
    "fetch": ("id", "matcher"),
    "unfetch": ("id",),
}
"""Order of positional parameters. ``call`` also accepts its arguments one by one, ``echo`` accepts anything."""


def name_params(method: str, params: bytes) -> bytes:
    """Convert positional parameters to named ones."""
    members = decode_members(params)
    if method == "call":
        return encode(_name_call(members))
    names = POSITIONS.get(method)
    if names is None:
        if members:
            raise WrongType("params")
        return b"{}"
    if len(members) != len(names):
        raise WrongCount(f"[{','.join(names)}]")
    return encode(dict(zip(names, members, strict=True)))


def _name_call(members: list[Raw]) -> dict[str, Raw]:
    """Convert the parameters of a call: ``[path, args]`` as was documented, or ``[path, arg1, ...]`` as was usual."""
    if not members:
        raise WrongCount("[path,args]")
    path, *args = members
    # One list or object is taken for the arguments, as documented, though it could be the only argument.
    if len(args) == 1 and bytes(args[0])[:1] in b"[{":
        return {"path": path, "args": args[0]}
    return {"path": path, "args": _encode(args)} if args else {"path": path, "args": Raw(b"[]")}


def _encode(params: object) -> Raw:
    return Raw(encode(params))


_POSITIONAL = re.compile(rb'"params"\s*:\s*\[')
_WORDS = (b'"element"', b'"notify"', b'"post"', b"match")


def may_be_legacy(batch: bytes) -> bool:
    """Return False if a batch is certainly without a request of 2012, by a quick search in its text."""
    if any(word in batch for word in _WORDS):
        return True
    return batch.find(b"[", batch.find(b"[") + 1) > 0 and _POSITIONAL.search(batch) is not None


def is_legacy(envelope: Envelope) -> bool:
    """Return True if a request has the shape of 2012."""
    try:
        method = read_method(envelope.method)
    except InvalidRequest:
        return False
    params = bytes(envelope.params)
    if params[:1] == b"[":
        return method in POSITIONS
    if params[:1] != b"{":
        return False
    return method in ("notify", "post") or bool(_SIGNS.get(method, frozenset()) & read_fields(envelope.params).keys())


MATCHER_WORDS = frozenset({"matcher", "match", "unmatch"})
_SIGNS = {"add": frozenset({"element"}), "change": frozenset({"element"}), "fetch": MATCHER_WORDS}
"""Members of params that only requests of 2012 have."""

VALUELESS = bytes(bytearray(b"null"))
"""Value of a state that was added without one; its identity distinguishes it from any other null."""

_KNOWN = frozenset({"type", "schema", "value"})


class LegacyElement:
    """The ``element`` of an add: a state, perhaps with a value, or a method, with a schema and other members."""

    __slots__ = ("is_method", "others", "schema", "value")

    def __init__(self, raw: bytes) -> None:
        fields = read_fields(raw, "element")
        if "type" not in fields:
            raise MissingParam("element.type")
        kind = read_text(fields["type"], "element.type")
        if kind not in ("state", "method"):
            raise WrongType("element.type")
        self.is_method = kind == "method"
        self.value = None if self.is_method else bytes(fields["value"]) if "value" in fields else VALUELESS
        self.schema = _read_schema(fields, "element.schema")
        self.others = _other_members(fields)


class Post:
    """A change of some members of an element: its value, its schema or others."""

    __slots__ = ("data", "others", "path", "schema", "type", "value")

    def __init__(self, path: str, data: bytes, name: str = "data") -> None:
        fields = read_fields(data, name)
        self.path = path
        self.data = bytes(data)
        """The changed members as JSON, in the form that peers of 2012 receive."""
        self.value = fields.get("value", ABSENT)
        self.type = read_text(fields["type"], f"{name}.type") if "type" in fields else None
        self.schema = _read_schema(fields, f"{name}.schema")
        if self.schema is not None and self.schema[:1] == b"{":
            self.data = encode(fields | {"schema": Raw(schema_text(self.schema))})
        self.others = _other_members(fields)

    @property
    def describes(self) -> bool:
        """True if more than a value changes."""
        return self.schema is not None or bool(self.others) or not self.value


def encode_description(schema: bytes, value: bytes | None) -> bytes:
    """Encode a change of the schema, perhaps with a value, as peers of 2012 receive it."""
    start = b"{" if value is None else b'{"value":' + value + b","
    return start + b'"schema":' + schema_text(schema) + b"}"


def schema_text(schema: bytes) -> bytes:
    """Return a schema as the JSON string that peers of 2012 expect; other JSON is put into a string."""
    return schema if schema[:1] == b'"' else encode(schema.decode())


def read_post(params: bytes) -> Post:
    """Return the change in the parameters of a ``notify`` or ``post``."""
    fields = read_fields(params)
    if "path" not in fields:
        raise MissingParam("path")
    path = read_text(fields["path"], "path")
    if "notification" in fields:
        fields = _read_notification(fields["notification"])
    if fields.get("event", Raw(b'"change"')) != Raw(b'"change"'):
        raise Invalid("event", "post tells a change; add and remove are told by the daemon")
    if "data" not in fields:
        raise MissingParam("data")
    return Post(path, fields["data"])


def _read_notification(raw: Raw) -> dict[str, Raw]:
    fields = read_fields(raw, "notification")
    return fields if fields.keys() & {"event", "data"} else {"data": raw}


def _read_schema(fields: dict[str, Raw], name: str) -> bytes | None:
    """Return the schema, which was always a text in 2012, and may be an object today."""
    if "schema" not in fields:
        return None
    schema = bytes(fields["schema"])
    if schema[:1] != b"{":
        read_text(fields["schema"], name)
    return schema


def _other_members(fields: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in fields.items() if name not in _KNOWN}
