"""``jet access``: may this user do that, and why?

The daemon does not tell which groups an element asks for. But it tells each user what it may do, so jet logs in as
that user and looks, then looks as whoever else it can be, and concludes from the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from jetbus.cli.buses import Bus, ask_password, read_password
from jetbus.cli.failures import Code, not_found
from jetbus.cli.frame import PATH, Example, Family, command
from jetbus.cli.output import Output
from jetbus.peer.fetching import Event
from jetbus.rules import Rule

access = Family("access", help="Who may fetch, set and call what.")

COLUMNS = ("user", "action", "path", "decision", "why")
ACTIONS = ("fetch", "set", "call")


@dataclass(frozen=True)
class View:
    """What somebody sees of a path, and the groups that somebody has."""

    event: Event | None
    groups: Any
    paths: list[str]


def _view(bus: Bus, path: str) -> View:
    with bus.quick() as peer:
        peer.check_ours("tell what a user may do")
        found = peer.look(Rule(path=(("equals", path),)))
        return View(found[0] if found else None, peer.groups, [] if found else peer.paths())


@command(
    name="check",
    examples=[
        Example("jet access check bob set plant/pump/speed --as-password-file pass.txt", "may bob set it?"),
        Example(
            "jet access check bob call plant/pump/run --as-password-file pass.txt -o value",
            "for a script: allowed or refused",
        ),
    ],
)
@click.argument("name", metavar="USER")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("path", type=PATH)
@click.option(
    "--as-password-file", "file", metavar="FILE", help="the password of USER, - for stdin; else it is asked for"
)
def check(bus: Bus, form: str | None, name: str, action: str, path: str, file: str | None) -> int:
    """Whether USER may fetch, set or call what is at PATH, and why. If not, the exit code is 7.

    It logs in as USER, so it needs that password. It changes nothing and calls nothing.
    """
    password = read_password(file) if file else (bus.password if bus.user == name else None)
    as_user = replace(bus, user=name, password=password or ask_password(f"password of {name}: "))
    theirs = _view(as_user, path)
    others = _view(bus if bus.user != name else replace(bus, user=None, password=None), path)
    if theirs.event is None and others.event is None:
        raise not_found(path, theirs.paths)
    allowed, why = decide(action, theirs, others)
    told = {"user": name, "action": action, "path": path, "decision": "allowed" if allowed else "refused", "why": why}
    Output(COLUMNS, form, value="decision").put_all([{**told, "groups": theirs.groups}])
    return Code.OK if allowed else Code.NOT_MET


def decide(action: str, theirs: View, others: View) -> tuple[bool, str]:
    """The decision for the one who has the first view, explained by the second."""
    event, groups = theirs.event, _groups(theirs.groups, action)
    if event is None:
        return False, f"it is hidden: its fetchGroups have none of this user's ({_groups(theirs.groups, 'fetch')})"
    if action == "fetch":
        return True, "it is shown to this user"
    if action == "set" and event.is_method:
        return False, "it is a method; only states can be set"
    if action == "call" and not event.is_method:
        return False, "it is a state; only methods can be called"
    if not event.fetch_only:
        return True, f"it is open to everybody, or its {action}Groups have one of this user's ({groups})"
    if others.event is not None and not others.event.fetch_only:
        return False, f"its {action}Groups have none of this user's ({groups}); others may"
    if event.is_method:
        return False, f"its callGroups have none of this user's ({groups})"
    return False, f"it is read-only for all, or its setGroups have none of this user's ({groups})"


def _groups(told: Any, action: str) -> str:
    names = told.get(f"{action}Groups") if isinstance(told, dict) else None
    return ", ".join(map(str, names)) if names else "none"


access.add_command(check)
