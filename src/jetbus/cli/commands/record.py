"""``jet record``: record any bus in a journal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import DURATION, Example, command, find_named_bus
from jetbus.cli.exit_codes import print_message, usage_error
from jetbus.cli.journals import explain_errors
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, run, run_until_end, run_until_sigterm
from jetbus.cli.target import Target
from jetbus.errors import InvalidRule
from jetbus.json_types import JsonObject

if TYPE_CHECKING:
    from jetbus.journal import Densities
    from jetbus.recorder import Recorder

LOOK_S = 0.2
"""Interval for checking the connection and the disk."""
COLUMNS = ("url", "folder", "events", "bytes", "seq")


@command(
    examples=[
        Example("jet record recording --for 1s", "record this bus for one second, in the folder recording"),
        Example(
            "jet record $JET_URL tanks --rule 'plant/**' --density 'plant/tank/* => sample 250ms' --for 1s",
            "record a part of a bus, the tanks four times a second",
        ),
    ]
)
@click.argument("words", nargs=-1, required=True, metavar="[URL|CONTEXT] DIR")
@click.option("--rule", metavar="RULE", help="record only paths that match")
@click.option(
    "--density",
    "densities",
    multiple=True,
    metavar="RULE=>DENSITY",
    help="record matching paths as every, skip or sample 1s; repeatable, the first match counts",
)
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="stop after this time, such as 8h")
def record(
    bus: Target,
    form: str | None,
    words: tuple[str, ...],
    rule: str | None,
    densities: tuple[str, ...],
    for_s: float | None,
) -> None:
    """Record a bus in the journal in DIR, until Ctrl-C, SIGTERM or the end of --for.

    It works with every daemon, and records every add, change and remove. An existing journal is continued. If the
    connection is lost, recording continues when the daemon is back, and the gap is recorded, too. Without --density
    every change is recorded; a sample is the last value of its interval.
    """
    if len(words) > 2:
        raise usage_error(
            "too many arguments; give the folder of the journal, and before it a URL or context if needed"
        )
    if rule is not None:
        # Refuses a malformed rule before a journal is made.
        read_rule(rule)
    source = find_named_bus(words[0]) if len(words) == 2 else bus
    with explain_errors():
        from jetbus.recorder import Recorder

        options = {"rule": rule, "densities": _read_densities(densities)}
        totals = run(_record(source, words[-1], options, Ending(for_s=for_s), Recorder))
    Output(COLUMNS, form, value="events").put_all([totals])


def _read_densities(texts: Sequence[str]) -> Densities:
    """Parse densities in the syntax of the daemon's configuration."""
    from jetbus.daemon.config import read_densities
    from jetbus.journal import Densities, JournalError

    try:
        return Densities(row for text in texts for row in read_densities(text))
    except (ValueError, InvalidRule, JournalError) as problem:
        raise usage_error(f"--density {'; '.join(texts)}: {problem}") from None


async def _record(
    bus: Target, folder: str, options: dict[str, Any], ending: Ending, recorder_of: type[Recorder]
) -> JsonObject:
    async with recorder_of(bus.url, folder, name="jet record", wait=bus.wait, **options, **bus.get_login()) as recorder:
        if sys.stderr.isatty():
            print_message(f"recording {recorder.url} in {folder} until Ctrl-C")
        reporting = asyncio.create_task(_report(recorder))
        try:
            await run_until_end(run_until_sigterm(recorder.wait()), ending)
        finally:
            reporting.cancel()
    stats = recorder.stats()
    totals = {name: value for name, value in stats.items() if name in COLUMNS}
    # The journal counts the next seq; people want that of the last event.
    return {"url": recorder.url, "folder": folder, **totals, "seq": stats["seq"] - 1}


async def _report(recorder: Recorder) -> None:
    """Report when the connection or the journal fails, and when it works again."""
    connected, problem = True, None
    while True:
        await asyncio.sleep(LOOK_S)
        if recorder.connected != connected:
            connected = recorder.connected
            print_message(
                f"reconnected to {recorder.url}"
                if connected
                else f"lost the connection to {recorder.url}; retrying until Ctrl-C"
            )
        if recorder.problem != problem:
            problem = recorder.problem
            print_message(f"cannot write the journal: {problem}" if problem else "the journal can be written again")
