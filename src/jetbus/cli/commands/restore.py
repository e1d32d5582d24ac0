"""``jet restore``: set states back to the values that they had at an instant."""

from __future__ import annotations

import click

from jetbus.cli.arguments import no_match_error, read_rules
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.commands.set import set_and_describe
from jetbus.cli.exit_codes import Code
from jetbus.cli.journals import (
    INSTANT,
    check_begin,
    corrected_option,
    journal_option,
    no_match_then,
    open_source,
    to_record,
)
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.peer.restore import find_restorable, is_refused

COLUMNS = ("path", "now", "then", "outcome")


@command(
    examples=[
        Example("jet restore 'plant/pump/*' --to -1s --dry-run", "what would be set back"),
        Example("jet restore plant/pump/speed --to -1s", "set one state back"),
    ],
    instants=True,
)
@click.argument("rules", nargs=-1, required=True, type=PATH, metavar="RULE...")
@click.option("--to", "instant", type=INSTANT, required=True, metavar="INSTANT", help="the values to go back to")
@click.option("--dry-run", is_flag=True, help="only print what differs")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="time limit for each owner")
@corrected_option
@journal_option
def restore(
    bus: Target,
    form: str | None,
    rules: tuple[str, ...],
    instant: str,
    dry_run: bool,
    timeout_s: float | None,
    corrected: bool,
    folder: str | None,
) -> int:
    """Set the states that match one of the RULEs to the values that they had at an instant.

    Each owner decides whether to accept its old value; the outcome of each state is printed. States that are not on the
    bus now, or were not then, are left alone. Old values come from the daemon's journal, or with --journal from the
    one in a folder. They are the values that the bus showed; with --corrected, those that came late count as well.
    """
    wanted = read_rules(rules)
    with open_source(bus, folder, instant) as past:
        check_begin(past, instant)
        rows = past.as_of(instant, rules, corrected=corrected)
        then = {row["path"]: row["value"] for row in map(to_record, rows) if "value" in row}
    if not then:
        raise no_match_then(rules, instant)
    has_refusals = False
    with bus.connect() as peer, Output(COLUMNS, form, value="path", empty="no differences") as out:
        now = {path: value for rule in wanted for path, value in peer.get_all(rule).items()}
        if not now:
            raise no_match_error(rules)
        for path, value, earlier in find_restorable(now, then):
            outcome = "would be set" if dry_run else set_and_describe(peer, path, earlier, timeout_s)[1]
            # A refusal does not keep the others from being set, but shows in the exit code.
            has_refusals |= is_refused(outcome)
            out.put({"path": path, "now": value, "then": earlier, "outcome": outcome})
    return Code.REFUSED if has_refusals else Code.OK
