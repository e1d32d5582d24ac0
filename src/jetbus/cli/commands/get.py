"""``jet get``: print the values of states."""

from __future__ import annotations

import click

from jetbus.cli.arguments import get_exact_path, is_shown, no_match_error, read_rules
from jetbus.cli.command import PATH, Example, command
from jetbus.cli.exit_codes import Failure, path_not_found, usage_error
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.errors import InvalidValue
from jetbus.peer.simple import SimplePeer
from jetbus.rules import Rule


@command(
    examples=[
        Example("jet get plant/pump/speed --output value", "one value, for a script"),
        Example("jet get 'plant/** value>7'", "all values below plant that are greater than 7"),
    ]
)
@click.argument("rules", nargs=-1, type=PATH, metavar="RULE...")
def get(bus: Target, form: str | None, rules: tuple[str, ...]) -> None:
    """Print the values of all states that match one of the RULEs.

    If a path does not exist, or nothing matches, the exit code is 5.
    """
    if not rules:
        raise usage_error("no rule given; give a path, a rule such as 'plant/**', or '**' for everything")
    wanted = read_rules(rules)
    found: dict[str, object] = {}
    with bus.connect() as peer:
        for rule in wanted:
            states = peer.get_all(rule)
            if not states:
                _explain_absence(peer, rule)
            found |= states
    if not found:
        raise no_match_error(rules)
    found = {path: value for path, value in found.items() if is_shown(path, rules)}
    # One value that cannot be decoded must not hide the others, so it is reported at the end.
    unreadable = [value for value in found.values() if isinstance(value, InvalidValue)]
    with Output(("path", "value"), form) as out:
        for path, value in found.items():
            if not isinstance(value, InvalidValue):
                out.put({"path": path, "value": value})
    if unreadable:
        raise Failure("; ".join(map(str, unreadable)))


def _explain_absence(peer: SimplePeer, rule: Rule) -> None:
    path = get_exact_path(rule)
    if path is None:
        return
    # ``get_all`` returns states only, so a method seems to be missing.
    if peer.look(rule):
        raise Failure(f"{path} is a method and has no value; call it with `jet call {path}`")
    raise path_not_found(path, peer.paths())
