"""``jet at``: the tree as it was at an instant."""

from __future__ import annotations

import click

from jetbus.cli.arguments import read_rules
from jetbus.cli.command import PATH, Example, command
from jetbus.cli.journals import (
    INSTANT,
    check_begin,
    corrected_option,
    insert_stamps,
    journal_option,
    no_match_then,
    open_source,
    to_record,
)
from jetbus.cli.output import Output
from jetbus.cli.target import Target

COLUMNS = ("path", "kind", "value", "peer", "ts")


@command(
    examples=[
        Example("jet at -1s 'plant/**'", "the plant one second ago, from the daemon's journal"),
        Example("jet at now --journal log --output csv", "the newest recorded values, from a folder"),
    ],
    instants=True,
)
@click.argument("instant", type=INSTANT)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@corrected_option
@journal_option
def at(
    bus: Target, form: str | None, instant: str, rules: tuple[str, ...], corrected: bool, folder: str | None
) -> None:
    """Print the states and methods that existed at INSTANT and match one of the RULEs; without a RULE, all.

    INSTANT is RFC 3339, a time of the clock such as 06:45, a day such as yesterday or monday, -2h or now. The tree is
    read from the journal of the daemon, or with --journal from the one in a folder. Values have a unit, a quality and
    source_ts, the time at which they were measured, where their owners say so.

    The tree is what the bus showed. With --corrected it is what was true: with values that came late, because the
    connection of their owner was lost.
    """
    # Refuses a malformed rule before the journal is opened.
    read_rules(rules)
    with open_source(bus, folder, instant) as then:
        check_begin(then, instant)
        rows = then.as_of(instant, rules, corrected=corrected)
    if not rows and rules:
        raise no_match_then(rules, instant)
    records = [to_record(row) for row in rows]
    columns = insert_stamps(COLUMNS, {name for record in records for name in record})
    with Output(columns, form) as out:
        out.put_all({name: record[name] for name in columns if name in record} for record in records)
