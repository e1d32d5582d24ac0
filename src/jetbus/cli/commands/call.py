"""``jet call``: call a method."""

from __future__ import annotations

import json
import sys

import click

from jetbus.cli.arguments import read_value
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.exit_codes import path_not_found, print_message, usage_error
from jetbus.cli.output import Output, choose_format, encode_json, print_line
from jetbus.cli.target import Target
from jetbus.errors import NotFound
from jetbus.json_types import Json, JsonObject


@command(
    examples=[
        Example("jet call plant/pump/add 3 4", "positional arguments, each in JSON"),
        Example("jet call plant/pump/run --arg seconds=5 --arg rpm=200", "named arguments"),
    ],
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path", type=PATH)
@click.argument("args", nargs=-1)
@click.option("--arg", "-a", "named", multiple=True, metavar="NAME=VALUE", help="named argument; repeatable")
@click.option("--string", "-s", is_flag=True, help="take arguments as text instead of JSON")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="time limit for the owner")
@click.option("--no-reply", is_flag=True, help="send it without waiting for an answer; an error is not reported")
def call(
    bus: Target,
    form: str | None,
    path: str,
    args: tuple[str, ...],
    named: tuple[str, ...],
    string: bool,
    timeout_s: float | None,
    no_reply: bool,
) -> None:
    """Call the method at PATH with ARGS, and print its result.

    Arguments are either positional or named. The result is printed as JSON; a result with columns and rows, as a
    pipeline returns it, becomes a table on a terminal and in CSV.
    """
    arguments = _read_arguments(args, named, string)
    if no_reply and timeout_s is not None:
        raise usage_error("--no-reply waits for nobody; leave out --timeout")
    with bus.connect() as peer:
        if no_reply:
            peer.call_unanswered(path, arguments)
            return
        try:
            result = peer.call(path, arguments, timeout_s)
        except NotFound:
            raise path_not_found(path, peer.paths()) from None
    _show(result, form)


def _read_arguments(args: tuple[str, ...], named: tuple[str, ...], string: bool) -> list[Json] | JsonObject:
    if args and named:
        raise usage_error("positional and named arguments cannot be mixed; use one kind")
    positional = [read_value(text, string=string) for text in args]
    pairs = [text.partition("=") for text in named]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise usage_error(f"--arg {name} has no value; write --arg NAME=VALUE")
    return {name: read_value(text, string=string) for name, _, text in pairs} or positional


def _show(result: Json, form: str | None) -> None:
    form = form or choose_format(sys.stdout)
    if form in ("table", "csv") and _is_table(result):
        columns = result["columns"]
        Output(columns, form, empty="no rows").put_all(dict(zip(columns, row, strict=True)) for row in result["rows"])
        if result.get("more"):
            print_message("the result was cut, there are more rows; narrow the query")
    # The result itself, without a record around it: scripts want the value that the method has returned.
    elif form == "jsonl":
        print_line(encode_json(result))
    elif form in ("json", "table"):
        print_lines(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        Output(("result",), form, value="result").put({"result": result})


def _is_table(result: Json) -> bool:
    """Return True if a result has columns and rows."""
    if not isinstance(result, dict):
        return False
    columns, rows = result.get("columns"), result.get("rows")
    # Any method may return members of these names, so nothing is taken for granted. Names of columns are unique, since
    # rows become records.
    return (
        isinstance(columns, list)
        and isinstance(rows, list)
        and all(isinstance(name, str) for name in columns)
        and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
        and len(set(columns)) == len(columns) > 0
    )


def print_lines(text: str) -> None:
    """Print the lines of a text, with control characters escaped."""
    for line in text.split("\n"):
        print_line(line)
