"""``jet at`` and ``jet diff``: the tree at an instant, and what is different between two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, printable, usage
from jetbus.cli.frame import Example, command, named_bus
from jetbus.cli.output import Output
from jetbus.cli.past import INSTANT, journal_option, past, told
from jetbus.cli.rules import read_one
from jetbus.peer.fetching import matches
from jetbus.rules import Rule

COLUMNS = ("path", "kind", "value", "peer", "at")


@command(
    examples=[
        Example("jet at -1s 'plant/**'", "the plant a second ago, from the daemon"),
        Example("jet at now --journal log --output csv", "the last that was recorded of everything, from a folder"),
    ],
    instants=True,
)
@click.argument("instant", type=INSTANT)
@click.argument("rule", required=False)
@journal_option
def at(bus: Bus, form: str | None, instant: str, rule: str | None, folder: str | None) -> None:
    """The states and methods that were there at INSTANT: RFC 3339, -2h or now.

    They come from the journal of the daemon, or with --journal from that in a folder.
    """
    if rule:
        read_one(rule)
    with past(bus, folder, instant) as then:
        rows = then.as_of(instant, rule)
    if not rows and rule:
        raise Failure(
            f"nothing matched {printable(rule)} then; `jet at {instant}` without a rule shows all", Code.NOT_FOUND
        )
    with Output(COLUMNS, form) as out:
        for row in rows:
            record = told(row)
            out.put({name: record[name] for name in COLUMNS if name in record})


@command(
    examples=[
        Example("jet diff -1s now", "what has changed in a second"),
        Example("jet get 'plant/**' > then.jsonl; jet diff then.jsonl $JET_URL 'plant/**'", "a file and a bus"),
    ],
    instants=True,
)
@click.argument("a", type=INSTANT)
@click.argument("b", type=INSTANT)
@click.argument("rule", required=False)
@click.option("--check", is_flag=True, help="exit code 7 if anything is different")
@journal_option
def diff(bus: Bus, form: str | None, a: str, b: str, rule: str | None, check: bool, folder: str | None) -> int:
    """What is added, removed and changed from A to B.

    A and B are each an instant, the URL of a bus, or a file with the output of `jet get` or `jet ls`. Instants are
    looked up in the journal of the daemon, or with --journal in that of a folder.
    """
    before, after = (_side(side, rule, bus, folder) for side in (a, b))
    found = list(_differences(before, after))
    with Output(("path", "what", "before", "after"), form, value="path", empty="nothing is different") as out:
        out.put_all(found)
    return Code.NOT_MET if check and found else Code.OK


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in sorted(before.keys() | after.keys()):
        sides = {name: side[path] for name, side in (("before", before), ("after", after)) if path in side}
        if len(sides) == 1:
            yield {"path": path, "what": "removed" if "before" in sides else "added", **sides}
        elif json.dumps(before[path], sort_keys=True) != json.dumps(after[path], sort_keys=True):
            yield {"path": path, "what": "changed", **sides}


def _side(text: str, rule: str | None, bus: Bus, folder: str | None) -> dict[str, Any]:
    """The values of one side of a comparison, by path."""
    wanted = read_one(rule) if rule else Rule()
    if "://" in text:
        with named_bus(text).quick() as peer:
            return peer.get(wanted)
    if Path(text).is_file():
        return {path: value for path, value in _from_file(Path(text)).items() if matches(wanted, path, value)}
    with past(bus, folder, text) as then:
        rows = map(told, then.as_of(text, rule))
        return {row["path"]: row["value"] for row in rows if "value" in row}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        entries = json.loads(text) if text.lstrip()[:1] == "[" else [json.loads(line) for line in text.splitlines()]
        return {entry["path"]: entry["value"] for entry in entries if "value" in entry}
    except (OSError, ValueError, KeyError, TypeError):
        raise usage(f"{file} is no output of `jet get`; make one with `jet get '**' > {file}`") from None
