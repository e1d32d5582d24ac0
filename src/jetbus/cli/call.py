"""``jet call``: call a method."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import complain, not_found, usage
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import Output, default_format, say
from jetbus.cli.values import read_value, shown
from jetbus.errors import NotFound


@command(
    examples=[
        Example("jet call plant/pump/add 3 4", "positional arguments, each of them JSON"),
        Example("jet call plant/pump/run --arg seconds=5 --arg rpm=200", "named arguments"),
    ],
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path", type=PATH)
@click.argument("args", nargs=-1)
@click.option("--arg", "-a", "named", multiple=True, metavar="NAME=VALUE", help="a named argument; may be repeated")
@click.option("--string", "-s", is_flag=True, help="arguments are text, not JSON")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="how long the owner may take")
def call(
    bus: Bus,
    form: str | None,
    path: str,
    args: tuple[str, ...],
    named: tuple[str, ...],
    string: bool,
    timeout_s: float | None,
) -> None:
    """Call the method at PATH with ARGS, and print what it returns.

    Arguments are positional or named, not both. The result itself is printed, as JSON; one of columns and rows, such as
    the answers of `jet pipeline`, is a table on a terminal and in CSV.
    """
    given = _arguments(args, named, string)
    with bus.quick() as peer:
        try:
            result = peer.call(path, given, timeout_s)
        except NotFound:
            raise not_found(path, peer.paths()) from None
    _show(result, form)


def _arguments(args: tuple[str, ...], named: tuple[str, ...], string: bool) -> list[Any] | dict[str, Any]:
    if args and named:
        raise usage("a method takes positional or named arguments, not both; leave out one kind")
    positional = [read_value(text, string=string) for text in args]
    pairs = [text.partition("=") for text in named]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise usage(f"--arg {name} has no value; write --arg NAME=VALUE")
    return {name: read_value(text, string=string) for name, _, text in pairs} or positional


def _show(result: Any, form: str | None) -> None:
    form = form or default_format(sys.stdout)
    if form in ("table", "csv") and _is_table(result):
        columns = result["columns"]
        Output(columns, form, empty="no rows").put_all(dict(zip(columns, row, strict=True)) for row in result["rows"])
        if result.get("more"):
            complain("there are more rows than these; ask for less at a time")
    elif form == "jsonl":
        say(shown(result))
    elif form in ("json", "table"):
        say_lines(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        Output(("result",), form, value="result").put({"result": result})


def _is_table(result: Any) -> bool:
    """Whether a result is columns and rows."""
    if not isinstance(result, dict):
        return False
    columns, rows = result.get("columns"), result.get("rows")
    return (
        isinstance(columns, list)
        and isinstance(rows, list)
        and all(isinstance(name, str) for name in columns)
        and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
        and len(set(columns)) == len(columns) > 0
    )


def say_lines(text: str) -> None:
    """Print lines, each without what a terminal would obey."""
    for line in text.split("\n"):
        say(line)
