"""``jet record``: any bus into a journal, from outside."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import complain, usage
from jetbus.cli.frame import DURATION, Example, command, named_bus
from jetbus.cli.output import Output
from jetbus.cli.past import explained
from jetbus.cli.rules import read_one
from jetbus.cli.streams import Ending, run, until_end, until_terminated
from jetbus.errors import InvalidRule

if TYPE_CHECKING:
    from jetbus.journal import Densities
    from jetbus.recorder import Recorder

LOOK_S = 0.2
"""How often it looks whether the connection and the disk are well."""
COLUMNS = ("url", "folder", "events", "bytes", "seq")


@command(
    examples=[
        Example("jet record recording --for 1s", "this bus for a second, into the folder recording"),
        Example(
            "jet record $JET_URL tanks --rule 'plant/**' --density 'plant/tank/* => sample 250ms' --for 1s",
            "a part of the bus at a URL, the tanks four times a second",
        ),
    ]
)
@click.argument("words", nargs=-1, required=True, metavar="[URL|CONTEXT] DIR")
@click.option("--rule", metavar="RULE", help="only what matches")
@click.option(
    "--density",
    "densities",
    multiple=True,
    metavar="RULE=>DENSITY",
    help="how densely paths are recorded: every, skip, sample 1s; may be repeated, the first rule that matches counts",
)
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 8h")
def record(
    bus: Bus,
    form: str | None,
    words: tuple[str, ...],
    rule: str | None,
    densities: tuple[str, ...],
    for_s: float | None,
) -> None:
    """Write what happens on a bus into the journal in DIR, until Ctrl-C, SIGTERM or the end of --for.

    It works with every daemon, and sees what a fetch sees: what is added, changed and removed. A journal that is there
    is continued. When the connection is lost, it goes on as soon as the daemon is back, and the gap is recorded.
    Without --density every change is recorded; a sample is the last value of its time.
    """
    if len(words) > 2:
        raise usage("record what into what? Give the folder of the journal, and before it a URL or a context")
    if rule is not None:
        read_one(rule)
    source = named_bus(words[0]) if len(words) == 2 else bus
    with explained():
        from jetbus.recorder import Recorder

        options = {"rule": rule, "densities": _read_densities(densities)}
        told = run(_record(source, words[-1], options, Ending(for_s=for_s), Recorder))
    Output(COLUMNS, form, value="events").put_all([told])


def _read_densities(texts: Sequence[str]) -> Densities:
    """The table of densities, written as the daemon's configuration has it."""
    from jetbus.daemon.config import read_densities
    from jetbus.journal import Densities, JournalError

    try:
        return Densities(row for text in texts for row in read_densities(text))
    except (ValueError, InvalidRule, JournalError) as problem:
        raise usage(f"--density {'; '.join(texts)}: {problem}") from None


async def _record(
    bus: Bus, folder: str, options: dict[str, Any], ending: Ending, recorder_of: type[Recorder]
) -> dict[str, Any]:
    async with recorder_of(bus.url, folder, name="jet record", **options, **bus.login()) as recorder:
        if sys.stderr.isatty():
            complain(f"recording {recorder.url} into {folder}; Ctrl-C ends")
        reporting = asyncio.create_task(_report(recorder))
        try:
            await until_end(until_terminated(recorder.wait()), ending)
        finally:
            reporting.cancel()
    stats = recorder.stats()
    told = {name: value for name, value in stats.items() if name in COLUMNS}
    return {"url": recorder.url, "folder": folder, **told, "seq": stats["seq"] - 1}


async def _report(recorder: Recorder) -> None:
    """Say when the connection is lost or back, and when the disk refuses or takes again."""
    connected, problem = True, None
    while True:
        await asyncio.sleep(LOOK_S)
        if recorder.connected != connected:
            connected = recorder.connected
            complain(
                f"connected to {recorder.url} again"
                if connected
                else f"the connection to {recorder.url} is lost; it is tried again until Ctrl-C"
            )
        if recorder.problem != problem:
            problem = recorder.problem
            complain(f"the journal cannot be written: {problem}" if problem else "the journal is written again")
