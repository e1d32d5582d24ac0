"""``jet diff``: the differences between two trees, each from an instant, a bus or a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from jetbus.cli.arguments import read_rules
from jetbus.cli.command import PATH, Example, command, find_named_bus
from jetbus.cli.exit_codes import Code, Failure, escape, usage_error
from jetbus.cli.journals import (
    INSTANT,
    BusSources,
    check_begin,
    check_range,
    corrected_option,
    journal_option,
    open_source,
    to_record,
)
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.journal.source import AskedAt
from jetbus.peer.restore import MISSING, Difference, compare_values
from jetbus.peer.subscription import matches


@command(
    examples=[
        Example("jet diff -1s now", "the changes of the last second"),
        Example(
            "jet get 'plant/**' > then.jsonl; jet diff then.jsonl $JET_URL 'plant/**'", "compare a file with a bus"
        ),
    ],
    instants=True,
)
@click.argument("a", type=INSTANT)
@click.argument("b", type=INSTANT)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@click.option("--check", is_flag=True, help="return exit code 7 if there is any difference")
@corrected_option
@journal_option
def diff(
    bus: Target,
    form: str | None,
    a: str,
    b: str,
    rules: tuple[str, ...],
    check: bool,
    corrected: bool,
    folder: str | None,
) -> int:
    """Print what was added, removed and changed between A and B, of all that matches a RULE.

    A and B are each an instant, the URL of a bus, or a file with the output of `jet get` or `jet ls`. Instants are
    looked up in the journal of the daemon, or with --journal in the one in a folder. Trees of instants are what the bus
    showed; with --corrected, values that came late count as well.
    """
    # Only two instants have an order; files and buses may be compared either way.
    if _is_instant(a) and _is_instant(b):
        check_range(a, b, ("", ""))
    asked = AskedAt()  # both sides mean the same moment

    def open_past(text: str) -> AbstractContextManager[BusSources]:
        return open_source(bus, folder, text, asked=asked)

    before, after = (_read_side(side, rules, open_past, corrected=corrected) for side in (a, b))
    if rules and not before and not after:
        what = " or ".join(map(escape, rules))
        raise Failure(f"nothing matches {what} on either side; `jet diff {a} {b}` compares everything", Code.NOT_FOUND)
    found = [_to_record(difference) for difference in compare_values(before, after)]
    with Output(("path", "what", "before", "after"), form, value="path", empty="no differences") as out:
        out.put_all(found)
    return Code.NOT_MET if check and found else Code.OK


def _to_record(difference: Difference) -> dict[str, Any]:
    sides = (("before", difference.before), ("after", difference.after))
    present = {name: value for name, value in sides if value is not MISSING}
    return {"path": difference.path, "what": difference.what, **present}


def _is_instant(text: str) -> bool:
    # A file goes before an instant of the same name.
    return "://" not in text and not Path(text).is_file()


def _read_side(
    text: str,
    rules: Sequence[str],
    open_past: Callable[[str], AbstractContextManager[BusSources]],
    *,
    corrected: bool,
) -> dict[str, Any]:
    """Return the values of one side of a comparison, by path."""
    wanted = read_rules(rules)
    if "://" in text:
        with find_named_bus(text).connect() as peer:
            return {path: value for rule in wanted for path, value in peer.get_all(rule).items()}
    if not _is_instant(text):
        values = _read_file(Path(text))
        return {path: values[path] for path in values if any(matches(rule, path, values[path]) for rule in wanted)}
    with open_past(text) as then:
        check_begin(then, text)
        rows = map(to_record, then.as_of(text, rules, corrected=corrected))
        # Methods have no value that could differ.
        return {row["path"]: row["value"] for row in rows if "value" in row}


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        # `jet get` writes one array with --output json, and an object per line otherwise.
        entries = json.loads(text) if text.lstrip()[:1] == "[" else [json.loads(line) for line in text.splitlines()]
        return {entry["path"]: entry["value"] for entry in entries if "value" in entry}
    except (OSError, ValueError, KeyError, TypeError):
        raise usage_error(f"{file} is not output of `jet get`; create it with `jet get '**' > {file}`") from None
