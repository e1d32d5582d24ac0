"""Descriptions of elements for commands: the meaning of a state, as its owner, its daemon or its device describes it.

The daemon has the schema, the source time and the quality of a state (see ``jetbus.schema``). Devices that describe
their states by further states, as those of HBK, are read by the importers in ``IMPORTS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from jetbus.cli.exit_codes import Code, Failure, escape
from jetbus.cli.output import encode_json
from jetbus.json_types import Json, JsonObject
from jetbus.schema import NAMES, Schema, read_quality, read_schema

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from jetbus.peer.events import Event
    from jetbus.peer.simple import SimplePeer

ACCESS = {(False, False): "set", (False, True): "read-only", (True, False): "call", (True, True): "no call"}
"""Access of this user to a state or method, by ``is_method`` and ``fetch_only``."""

_FIELDS = ("title", "description", "unit", "minimum", "maximum", "normal", "enum", "stale_s", "precision", "step")
"""Members of a schema that have a column of their own in the output of ``jet describe``."""


def _import_hbk(states: Mapping[str, Json]) -> dict[str, JsonObject]:
    from jetbus.cli.hbk import find_descriptions

    return find_descriptions(states)


IMPORTS: dict[str, Callable[[Mapping[str, Json]], dict[str, JsonObject]]] = {"hbk": _import_hbk}
"""Conventions by which devices describe their states: functions from all states to schemas by path."""


def name_owner(info: Mapping[str, Json] | None) -> str | None:
    """Return the owner of an element from the daemon's report; the daemon itself is jetd."""
    if info is None:
        return None
    # Owners are reported as NAME#NUMBER. The daemon has the number 0 and no name.
    return "jetd" if info["owner"] == "#0" else str(info["owner"])


def describe_element(
    event: Event, owner: Mapping[str, Json] | None, described: Mapping[str, Json], schema: Json = None
) -> JsonObject:
    """Return the known properties of an element as a record, without unknown ones.

    ``described`` has its schema and meta data, as the daemon reports them; ``schema`` takes the place of that schema.
    """
    record: JsonObject = {"path": event.path, "kind": "method" if event.is_method else "state"}
    if not event.is_method:
        record["value"] = event.value
    schema = described.get("schema") if schema is None else schema
    read = read_schema(schema)
    record |= {NAMES[field]: getattr(read, field) for field in _FIELDS if getattr(read, field) not in (None, ())}
    record |= _describe_call(read) if event.is_method else {}
    # The owner may declare a state read-only in its schema and still take sets.
    record["access"] = ACCESS[event.is_method, event.fetch_only or read.read_only]
    if owner is not None:
        record["owner"] = name_owner(owner)
        record |= {"groups": owner["access"]} if owner.get("access") else {}
    record |= _describe_value(described)
    if schema is not None:
        record["schema"] = schema
    return record


def _describe_call(schema: Schema) -> JsonObject:
    """Return the arguments and the result of a method in a line each, as far as its schema names them."""
    members = schema.members
    arguments = [(str(one.get("title", "")), one) for one in members.get("args", ()) if isinstance(one, Mapping)]
    if isinstance(members.get("items"), Mapping):
        arguments.append(("...", members["items"]))
    arguments += [(name, inner.members) for name, inner in schema.properties.items()]
    record: JsonObject = {}
    if arguments:
        record["takes"] = ", ".join(_describe_argument(name, one, schema.required) for name, one in arguments)
    if isinstance(members.get("result"), Mapping):
        record["returns"] = describe_type(members["result"])
    return record


def _describe_argument(name: str, schema: Mapping[str, Json], required: Sequence[str]) -> str:
    unit = f" {schema['unit']}" if "unit" in schema else ""
    default = f" = {encode_json(schema['default'])}" if "default" in schema and name not in required else ""
    return f"{name}: {describe_type({**schema, 'title': None})}{unit}{default}".removeprefix(": ")


def describe_type(schema: Mapping[str, Json]) -> str:
    """Return the values that a schema allows in a few words.

    >>> describe_type({"type": "array", "items": {"type": ["number", "null"]}})
    'list of number or null'
    """
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(encode_json, schema["enum"]))
    if isinstance(schema.get("anyOf"), list):
        return " or ".join(describe_type(one) for one in schema["anyOf"] if isinstance(one, Mapping))
    types, items = schema.get("type"), schema.get("items")
    if types == "array" and isinstance(items, Mapping):
        return f"list of {describe_type(items)}"
    if types == "object" and isinstance(schema.get("properties"), Mapping):
        return f"{{{', '.join(schema['properties'])}}}"
    return " or ".join(types) if isinstance(types, list) else str(types or "any value")


def _describe_value(described: Mapping[str, Json]) -> JsonObject:
    """Return quality, source time and age of a value."""
    record: JsonObject = {}
    if "quality" in described:
        try:
            quality = read_quality(described["quality"])
        except ValueError:  # a later daemon may know other qualities
            record["quality"] = described["quality"]
        else:
            record["quality"] = quality.level
            record |= {} if quality.reason is None else {"reason": quality.reason}
    if described.get("stale"):
        record["stale"] = True
    if "ts" in described:
        record["ts"] = described["ts"]
        # Compares the clock of the source with that of this machine, so it can be negative.
        record["age_s"] = round(time.time() - datetime.fromisoformat(described["ts"]).timestamp(), 3)
    return record


def explain_mismatch(path: str, schema: Schema, value: Json) -> Failure | None:
    """Return the failure of a value that does not fit the schema of its state; None if it fits."""
    mismatch = schema.find_mismatch(value)
    if mismatch is None:
        return None
    unit = f" ({escape(schema.unit)})" if schema.unit and mismatch.member == "value" else ""
    return Failure(f"{escape(path)} does not take that value: {mismatch}{unit}", Code.REFUSED)


def describe_range(record: Mapping[str, Json]) -> str:
    """Return the range of a state as people write it, such as ``0 … 3000 rpm``; empty if it has none."""
    low, high = record.get("minimum"), record.get("maximum")
    if low is None and high is None:
        return ""
    ends = f"{'' if low is None else low} … {'' if high is None else high}".strip()
    return f"{ends} {record.get('unit', '')}".rstrip()


def complete_values(peer: SimplePeer, path: str, incomplete: str) -> Iterable[str]:
    """Return the allowed values of a state that start as typed, as JSON."""
    from jetbus.rules import rule as make_rule

    described = peer.describe(make_rule(equals=path)).get(path, {})
    schema = read_schema(described.get("schema"))
    values = schema.enum or ((True, False) if schema.type == ("boolean",) else ())
    # The shell completes typed JSON: texts start with a quote.
    return [text for text in map(encode_json, values) if text.startswith(incomplete)]


class StateValue(click.ParamType[str]):
    """Parameter type for the value of a state, completed by the shell from the enum in its schema."""

    name = "value"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from jetbus.cli.commands.completion import complete_enum

        return list(complete_enum(ctx, incomplete))
