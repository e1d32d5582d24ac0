"""The requests of 2012 read into today's parameters: positional parameters, ``element``, ``notify``/``post``,
``matcher``.

A request is legacy by its shape, not by its sender. What is read here goes to the same services as everything else.
"""

from __future__ import annotations

from msgspec import Raw

from jetbus.errors import Invalid, MissingParam, WrongCount, WrongType
from jetbus.wire.jsonrpc import ABSENT, NULL, decode_members, encode, read_fields, read_text

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


class Element:
    """An ``element`` of 2012: a state with its value, or a method; either with a schema."""

    __slots__ = ("schema", "value")

    def __init__(self, raw: Raw) -> None:
        fields = read_fields(raw, "element")
        if "type" not in fields:
            raise MissingParam("element.type")
        kind = read_text(fields["type"], "element.type")
        if kind == "state":
            self.value = fields.get("value", NULL)
        elif kind == "method":
            self.value = ABSENT
        else:
            raise WrongType("element.type")
        self.schema = fields.get("schema")


class Post:
    """A ``notify``/``post``: which fields of a state's element changed."""

    __slots__ = ("data", "path", "schema", "value")

    def __init__(self, params: Raw) -> None:
        fields = read_fields(params)
        if "path" not in fields:
            raise MissingParam("path")
        self.path = read_text(fields["path"], "path")
        if "notification" in fields:
            fields = self._read_notification(fields["notification"])
        if fields.get("event", Raw(b'"change"')) != Raw(b'"change"'):
            raise Invalid("event", "post tells a change; add and remove are told by the daemon")
        if "data" not in fields:
            raise MissingParam("data")
        self.data = fields["data"]
        changed = read_fields(self.data, "data")
        self.value = changed.get("value", ABSENT)
        self.schema = changed.get("schema")

    @staticmethod
    def _read_notification(raw: Raw) -> dict[str, Raw]:
        fields = read_fields(raw, "notification")
        return fields if fields.keys() & {"event", "data"} else {"data": raw}
