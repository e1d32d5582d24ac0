"""``jet describe``: all that is known of states and methods."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from jetbus.cli.arguments import no_match_error, read_rule
from jetbus.cli.command import PATH, Example, command
from jetbus.cli.element_schemas import IMPORTS, describe_element, describe_range
from jetbus.cli.exit_codes import path_not_found
from jetbus.cli.output import Output, choose_format, encode_json, print_line
from jetbus.cli.target import Target
from jetbus.json_types import Json, JsonObject
from jetbus.rules import Rule

COLUMNS = ("path", "kind", "value", "unit", "range", "access", "owner", "quality", "ts", "age_s", "title", "schema")
"""Columns of the formats that have columns."""
_HIDDEN = ("path", "minimum", "maximum", "schema")
"""Members that are not lines of their own on a terminal."""


@command(
    examples=[
        Example("jet describe plant/pump/speed", "value, unit, range, owner, quality and schema of one state"),
        Example(
            "jet describe --import hbk '**' --output json", "schemas of a device that describes itself as HBK's do"
        ),
    ]
)
@click.argument("rule", type=PATH)
@click.option(
    "--import",
    "convention",
    type=click.Choice(tuple(IMPORTS)),
    help="also read descriptions that devices publish as states, by this convention",
)
def describe(bus: Target, form: str | None, rule: str, convention: str | None) -> None:
    """Print all that is known of the state or method at RULE, or of all that match it.

    That is its value with unit, range, quality, source time and age, its owner and access, and the schema that its
    owner gave it; for a method, the arguments that it takes and what it returns. With --import, states that have no
    schema of their own get the one that their device publishes in other states: hbk reads `/introspection/` and
    `/types/` of HBK's devices, and the data descriptors of openDAQ.
    """
    print_descriptions(bus, form, rule, convention)


def print_descriptions(bus: Target, form: str | None, rule: str, convention: str | None = None) -> None:
    """Print all that is known of the states and methods that match a rule."""
    wanted = read_rule(rule)
    with bus.connect() as peer:
        events = sorted(peer.look(wanted), key=lambda event: event.path)
        if not events:
            if wanted.exact_paths:
                raise path_not_found(rule, peer.paths())
            raise no_match_error([rule])
        owners, described = peer.owners(wanted), peer.describe(wanted)
        imported: Mapping[str, Json] = {}
        if convention is not None:
            # A device describes its states in others, which may be anywhere on the bus.
            imported = IMPORTS[convention](peer.get_all(Rule()))
    records = [_describe(event, owners, described, imported) for event in events]
    if (form or choose_format(sys.stdout)) == "table":
        for number, record in enumerate(records):
            _print_lines(record, first=not number)
        return
    Output(COLUMNS, form, value="schema").put_all(
        record | ({"range": span} if (span := describe_range(record)) else {}) for record in records
    )


def _describe(
    event: Json, owners: Mapping[str, Json], described: Mapping[str, Json], imported: Mapping[str, Json]
) -> JsonObject:
    known = described.get(event.path, {})
    # A schema from the owner itself goes before an imported one.
    schema = None if "schema" in known else imported.get(event.path)
    return describe_element(event, owners.get(event.path), known, schema)


def _print_lines(record: Mapping[str, Json], *, first: bool) -> None:
    """Print a record for people: one member per line."""
    if not first:
        print_line("")
    print_line(record["path"])
    shown = {name: value for name, value in record.items() if name not in _HIDDEN}
    if span := describe_range(record):
        shown["range"] = span
    place = "value" if record["kind"] == "state" else "argument"
    if isinstance(record.get("schema"), Mapping) and "properties" in record["schema"]:
        shown |= {f"{place}.{name}": inner for name, inner in record["schema"]["properties"].items()}
    width = max(map(len, shown))
    for name, value in shown.items():
        # The value itself is JSON, to distinguish the text "7" from the number.
        text = value if isinstance(value, str) and name != "value" else encode_json(value)
        print_line(f"  {name:<{width}}  {text}")
