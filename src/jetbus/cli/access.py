"""``jet access``: may this user do that, and why?

The daemon tells each user what it may do, so jet logs in as that user and looks. Which groups an element asks for it
tells an administrator; who is none looks as whoever else it can be, and concludes from the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from jetbus.cli.buses import Bus, ask_password, read_password
from jetbus.cli.failures import Code, not_found, reason_of
from jetbus.cli.frame import PATH, Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.quick import QuickPeer
from jetbus.errors import JetError
from jetbus.peer.fetching import Event
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

access = Family("access", help="Who may fetch, set and call what.")

COLUMNS = ("user", "action", "path", "decision", "why")
ACTIONS = ("fetch", "set", "call")


@dataclass(frozen=True)
class View:
    """What somebody sees of a path, and the groups that somebody has."""

    event: Event | None
    groups: Any
    paths: list[str]
    lists: dict[str, list[str]] | None = None
    """The groups that are asked for, by action; None if that was not told."""


def _view(bus: Bus, path: str) -> View:
    with bus.quick() as peer:
        peer.check_ours("tell what a user may do")
        rule = make_rule(equals=path)
        found = peer.look(rule)
        if not found:
            return View(None, peer.groups, peer.paths())
        return View(found[0], peer.groups, [], _lists(peer, rule, path))


def _lists(peer: QuickPeer, rule: Rule, path: str) -> dict[str, list[str]] | None:
    told = peer.owners(rule).get(path)
    if told is None or "access" in told:
        return None if told is None else dict(told["access"])
    return {} if _is_admin(peer) else None


def _is_admin(peer: QuickPeer) -> bool:
    """Whether the daemon would do what only administrators may; it is asked for what nobody can have."""
    try:
        peer.call("$jet/kick", {"peer": None})
    except JetError as problem:
        return reason_of(problem) == "peer"
    return False


@command(
    name="check",
    examples=[
        Example(
            "jet access check bob set plant/pump/speed --as-password-file pass.txt --user ann --password-file ann.txt",
            "may bob set it? The admin ann knows why",
        ),
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

    It logs in as USER, so it needs that password. Logged in as an admin (--user) it knows which groups are asked for
    and explains exactly. It changes nothing.
    """
    password = read_password(file) if file else (bus.password if bus.user == name else None)
    if password is None:
        password = ask_password(f"password of {name}: ")
    as_user = replace(bus, user=name, password=password)
    theirs = _view(as_user, path)
    others = _view(bus if bus.user != name else replace(bus, user=None, password=None), path)
    if theirs.event is None and others.event is None:
        raise not_found(path, theirs.paths)
    lists = theirs.lists if others.lists is None else others.lists
    allowed, why = decide(action, theirs, others) if lists is None else decide_exactly(action, theirs, others, lists)
    told = {"user": name, "action": action, "path": path, "decision": "allowed" if allowed else "refused", "why": why}
    Output(COLUMNS, form, value="decision").put_all([{**told, "groups": theirs.groups, "access": lists}])
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


def decide_exactly(action: str, theirs: View, others: View, lists: dict[str, list[str]]) -> tuple[bool, str]:
    """The decision for the one who has the first view, where it is known which groups are asked for."""
    event = theirs.event or others.event
    if event is None:
        return False, "it is not there"
    if (action == "set" and event.is_method) or (action == "call" and not event.is_method):
        return decide(action, View(event, theirs.groups, []), others)
    name = f"{action}Groups"
    asked, has = lists.get(name), _named(theirs.groups, action)
    if asked is not None and not set(asked) & set(has):
        hidden = "" if action == "fetch" or theirs.event else ", and it is hidden from this user"
        return False, f"its {name} are {_listed(asked)}; this user has {_listed(has)}{hidden}"
    if action == "set" and _is_read_only(theirs, others, lists):
        return False, "it is read-only: its owner takes no set from anybody"
    if asked is None:
        return True, f"it asks for no {name}"
    common = [group for group in asked if group in has]
    return True, f"its {name} are {_listed(asked)}; this user has {_listed(common)}"


def _is_read_only(theirs: View, others: View, lists: dict[str, list[str]]) -> bool:
    """Whether nobody can set it; only one who has the group can tell that from a lacking group."""
    asked = lists.get("setGroups")
    open_to = [view for view in (theirs, others) if asked is None or set(asked) & set(_named(view.groups, "set"))]
    return any(view.event is not None and view.event.fetch_only for view in open_to)


def _named(told: Any, action: str) -> list[str]:
    names = told.get(f"{action}Groups") if isinstance(told, dict) else None
    return list(map(str, names or ()))


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _groups(told: Any, action: str) -> str:
    return _listed(_named(told, action))


access.add_command(check)
