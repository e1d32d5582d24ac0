"""The requests of 2012 read into today's parameters: positional parameters, ``element``, ``notify``/``post``,
``matcher``.

A request is legacy by its shape, not by its sender. What is read here goes to the same services as everything else.
"""

from __future__ import annotations

import re

from msgspec import Raw

from jetbus.errors import Invalid, MissingParam, UnknownService, WrongCount, WrongType
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
"""The order of positional parameters. ``call`` may also have its arguments one by one, ``echo`` takes anything."""


def name_params(method: str, params: Raw) -> Raw:
    """Positional parameters with their names put to them."""
    members = decode_members(params)
    if method == "call":
        return _encode(_name_call(members))
    names = POSITIONS.get(method)
    if names is None:
        if members:
            raise WrongType("params")
        return Raw(b"{}")
    if len(members) != len(names):
        raise WrongCount(f"[{','.join(names)}]")
    return _encode(dict(zip(names, members, strict=True)))


def _name_call(members: list[Raw]) -> dict[str, Raw]:
    """The documents say ``[path, args]``, the code of the day took ``[path, arg1, ...]``: both are understood."""
    if not members:
        raise WrongCount("[path,args]")
    path, *args = members
    if len(args) == 1 and bytes(args[0])[:1] in b"[{":
        return {"path": path, "args": args[0]}
    return {"path": path, "args": _encode(args)} if args else {"path": path, "args": Raw(b"[]")}


def _encode(what: object) -> Raw:
    return Raw(encode(what))


_POSITIONAL = re.compile(rb'"params"\s*:\s*\[')
_WORDS = (b'"element"', b'"notify"', b'"post"', b"match")


def may_be_legacy(batch: bytes) -> bool:
    """Whether a batch may have a request of 2012 in it; most have none, and this is quick to see."""
    if any(word in batch for word in _WORDS):
        return True
    return batch.find(b"[", batch.find(b"[") + 1) > 0 and _POSITIONAL.search(batch) is not None


def is_legacy(envelope: Envelope) -> bool:
    """Whether a request is of 2012 by its shape."""
    try:
        method = read_method(envelope.method)
    except UnknownService:
        return False
    params = bytes(envelope.params)
    if params[:1] == b"[":
        return method in POSITIONS
    if params[:1] != b"{":
        return False
    return method in ("notify", "post") or bool(_SIGNS.get(method, frozenset()) & read_fields(envelope.params).keys())


MATCHER_WORDS = frozenset({"matcher", "match", "unmatch"})
_SIGNS = {"add": frozenset({"element"}), "change": frozenset({"element"}), "fetch": MATCHER_WORDS}
"""The members of params that only requests of 2012 have."""

VALUELESS = bytes(bytearray(b"null"))
"""The value of a state that was added without one, told from any other null by its identity."""

_KNOWN = frozenset({"type", "schema", "value"})


class Element:
    """An ``element`` of 2012: a state, perhaps with a value, or a method; either with a schema and other members."""

    __slots__ = ("is_method", "others", "schema", "value")

    def __init__(self, raw: Raw) -> None:
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
    """A change of some members of an element: of a state's value, of anybody's schema and other members."""

    __slots__ = ("data", "others", "path", "schema", "type", "value")

    def __init__(self, path: str, data: Raw, name: str = "data") -> None:
        fields = read_fields(data, name)
        self.path = path
        self.data = bytes(data)
        """The changed members, as peers of 2012 are told."""
        self.value = fields.get("value", ABSENT)
        self.type = read_text(fields["type"], f"{name}.type") if "type" in fields else None
        self.schema = _read_schema(fields, f"{name}.schema")
        self.others = _other_members(fields)

    @property
    def describes(self) -> bool:
        """Whether it is about more than a value."""
        return self.schema is not None or bool(self.others) or not self.value


def describe(path: str, schema: bytes) -> Post:
    """A change of a schema, which today may be any JSON."""
    post = Post(path, Raw(b'{"schema":' + as_text(schema) + b"}"))
    post.schema = schema
    return post


def as_text(schema: bytes) -> bytes:
    """A schema as peers of 2012 know it: a text; any other JSON is shown as the text that it is written in."""
    return schema if schema[:1] == b'"' else encode(schema.decode())


def read_post(params: Raw) -> Post:
    """The change that a ``notify`` or ``post`` tells."""
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
    """A schema, which was a text in 2012."""
    if "schema" not in fields:
        return None
    read_text(fields["schema"], name)
    return bytes(fields["schema"])


def _other_members(fields: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in fields.items() if name not in _KNOWN}
