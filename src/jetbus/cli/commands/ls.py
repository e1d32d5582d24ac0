"""``jet ls``: the states and methods on the bus."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from jetbus.cli.arguments import is_shown, no_match_error, read_rule
from jetbus.cli.command import PATH, Example, command
from jetbus.cli.element_schemas import ACCESS, name_owner
from jetbus.cli.output import Output, choose_format, print_line
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer.events import Event
from jetbus.rules import Rule
from jetbus.schema import read_schema

COLUMNS = ("path", "kind", "access", "value", "unit", "owner")


class ListedElement(NamedTuple):
    """State or method, with its owner if the daemon reports it."""

    event: Event
    owner: str | None = None
    unit: str | None = None

    def to_record(self) -> JsonObject:
        """Return the element as a record."""
        event = self.event
        record: JsonObject = {"path": event.path, "kind": "method" if event.is_method else "state"}
        record["access"] = ACCESS[event.is_method, event.fetch_only]
        if not event.is_method:
            record["value"] = event.value
        if self.unit is not None:
            record["unit"] = self.unit
        return record if self.owner is None else {**record, "owner": self.owner}


def _read_prefix(prefix: str | None) -> Rule:
    """Return the rule for a prefix: a node with all below it, or a rule."""
    if not prefix:
        return Rule()
    # These characters make a rule of it; a path that has them can be given as a quoted rule.
    if any(char in prefix for char in '* "'):
        return read_rule(prefix)
    return Rule(path=(("startsWith", prefix),))


def find_elements(bus: Target, prefix: str | None) -> list[ListedElement]:
    rule = _read_prefix(prefix)
    with bus.connect() as peer:
        events = [event for event in peer.look(rule) if is_shown(event.path, [prefix or ""])]
        owners, described = peer.owners(rule), peer.describe(rule)
    if prefix and not any(char in prefix for char in '* "'):
        node = prefix.rstrip("/")
        inside = [event for event in events if event.path == node or event.path.startswith(node + "/")]
        # plant does not mean plantation, unless a node plant is missing: then it is the start of a name.
        events = inside or events
    if prefix and not events:
        raise no_match_error([prefix])
    events = sorted(events, key=lambda event: event.path)
    return [
        ListedElement(event, name_owner(owners.get(event.path)), _find_unit(described.get(event.path)))
        for event in events
    ]


def _find_unit(described: JsonObject | None) -> str | None:
    return None if described is None else read_schema(described.get("schema")).unit


@command(
    examples=[
        Example("jet ls plant", "everything below plant, with values"),
        Example("jet ls '**/speed' --output csv", "all that matches a rule, for a spreadsheet"),
    ]
)
@click.argument("prefix", required=False, type=PATH)
def ls(bus: Target, form: str | None, prefix: str | None) -> None:
    """List the states and methods below PREFIX, or those that match it if it is a rule, sorted by path.

    States have a unit where their owners say so; `jet describe` shows everything. The owner is the name of a peer and
    its number in `jet peers`; only jetd reports it. The states of the daemon itself are listed only by `jet ls '$jet'`.
    """
    found = find_elements(bus, prefix)
    # Most buses have no units, and a column of blanks would only push the others together.
    columns = COLUMNS if any(one.unit for one in found) else [name for name in COLUMNS if name != "unit"]
    Output(columns, form, value="path").put_all(one.to_record() for one in found)
    if not found and (form or choose_format(sys.stdout)) == "table":
        print_line("the bus is empty")
