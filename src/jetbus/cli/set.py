"""``jet set``: ask the owner of a state for another value."""

from __future__ import annotations

import sys
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import complain, not_found
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import Output
from jetbus.cli.values import read_value
from jetbus.errors import NotFound
from jetbus.rules import rule as make_rule


@command(
    examples=[
        Example("jet set plant/pump/speed 1200", "a number; values are JSON"),
        Example("jet set plant/pump/mode auto --string", "text without quotes"),
    ],
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path", type=PATH)
@click.argument("value")
@click.option("--string", "-s", is_flag=True, help="VALUE is text, not JSON")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="how long the owner may take")
def set_state(bus: Bus, form: str | None, path: str, value: str, string: bool, timeout_s: float | None) -> None:
    """Ask the owner of the state at PATH to take VALUE, and wait for its answer.

    VALUE is JSON, - reads it from stdin. If the owner takes another value than asked for, that one is shown.
    """
    asked = read_value(sys.stdin.read().strip() if value == "-" else value, string=string)
    told: dict[str, Any] = {"path": path, "value": asked}
    with bus.quick() as peer:
        try:
            result = peer.set(path, asked, timeout_s)
        except NotFound:
            raise not_found(path, peer.paths()) from None
        if result.adapted:
            told["value"] = peer.get(make_rule(equals=path)).get(path, asked)
    if result.adapted:
        told["warning"] = result.warning or "the owner took another value"
        complain(f"{path}: {told['warning']}")
    with Output(("path", "value"), form) as out:
        out.put(told)
