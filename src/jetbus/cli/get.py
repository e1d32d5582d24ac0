"""``jet get``: values once."""

from __future__ import annotations

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Failure, not_found, usage
from jetbus.cli.frame import PATH, Example, command
from jetbus.cli.output import Output
from jetbus.cli.quick import QuickPeer
from jetbus.cli.rules import exact_path, nothing_matches, read_rules
from jetbus.errors import InvalidValue
from jetbus.rules import Rule


@command(
    examples=[
        Example("jet get plant/pump/speed --output value", "one value, for a script"),
        Example("jet get 'plant/** value>7'", "all values below plant that are above 7"),
    ]
)
@click.argument("rules", nargs=-1, type=PATH, metavar="RULE...")
def get(bus: Bus, form: str | None, rules: tuple[str, ...]) -> None:
    """The values of all states that match one of the RULEs.

    A path that nobody has added is an error with exit code 5, and so is a rule that nothing matches.
    """
    if not rules:
        raise usage("get what? Give a path, a rule such as 'plant/**', or '**' for everything")
    wanted = read_rules(rules)
    found: dict[str, object] = {}
    with bus.quick() as peer:
        for rule in wanted:
            states = peer.get(rule)
            if not states:
                _explain_absence(peer, rule)
            found |= states
    if not found:
        raise nothing_matches(rules)
    unreadable = [value for value in found.values() if isinstance(value, InvalidValue)]
    with Output(("path", "value"), form) as out:
        for path, value in found.items():
            if not isinstance(value, InvalidValue):
                out.put({"path": path, "value": value})
    if unreadable:
        raise Failure("; ".join(map(str, unreadable)))


def _explain_absence(peer: QuickPeer, rule: Rule) -> None:
    path = exact_path(rule)
    if path is None:
        return
    if peer.look(rule):
        raise Failure(f"{path} is a method and has no value; `jet call {path}` calls it")
    raise not_found(path, peer.paths())
