"""``jet access``: explain the rights of a user.

The daemon shows each user what it may do, so jet logs in as that user and looks. Only an administrator is shown the
groups that an element asks for; other users look as a second user as well, and conclude from the difference::

    groups known, by an administrator      decide_exactly: compares the groups of user and element
    groups unknown, or rules by path       decide: compares the views of two users, and names all possible reasons
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import click

from jetbus.cli.command import PATH, Example, Family, command
from jetbus.cli.exit_codes import Code, get_reason, path_not_found
from jetbus.cli.output import Output
from jetbus.cli.target import Target, ask_password, read_password
from jetbus.errors import JetError
from jetbus.json_types import Json
from jetbus.peer.events import Event
from jetbus.peer.simple import SimplePeer
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

access = Family("access", help="Explain who may fetch, set and call a path.")

COLUMNS = ("user", "action", "path", "decision", "why")
ACTIONS = ("fetch", "set", "call")


@dataclass(frozen=True)
class View:
    """Path as a user sees it, and the groups of that user."""

    event: Event | None
    groups: Json
    paths: list[str]
    lists: dict[str, list[str]] | None = None
    """Groups that are asked for, by action; None if the daemon does not show them."""


def _view(bus: Target, path: str) -> View:
    with bus.connect() as peer:
        peer.check_jetbus("tell what a user may do")
        rule = make_rule(equals=path)
        found = peer.look(rule)
        if not found:
            return View(None, peer.groups, peer.paths())
        return View(found[0], peer.groups, [], _lists(peer, rule, path))


def _lists(peer: SimplePeer, rule: Rule, path: str) -> dict[str, list[str]] | None:
    owner = peer.owners(rule).get(path)
    if owner is None or owner.get("ruled"):
        return None  # rules by path decide, and only the daemon knows them
    if "access" in owner:
        return dict(owner["access"])
    # An administrator would see groups, so there are none; to others they are not shown.
    return {} if _is_admin(peer) else None


def _is_admin(peer: SimplePeer) -> bool:
    """Return whether the user is an administrator: only then is a kick refused for its parameter ``peer``."""
    try:
        # No connection is closed, as no peer has this number. Users without the right are refused before it is read.
        peer.call("$jet/kick", {"peer": None})
    except JetError as problem:
        return get_reason(problem) == "peer"
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
def check(bus: Target, form: str | None, name: str, action: str, path: str, file: str | None) -> int:
    """Check whether USER may fetch, set or call PATH, and print why. If not, the exit code is 7.

    It logs in as USER, so it needs that password. Logged in as an admin (--user) it knows which groups are asked for
    and explains exactly. It changes nothing.
    """
    password = read_password(file) if file else (bus.password if bus.user == name else None)
    if password is None:
        password = ask_password(f"password of {name}: ", "--as-password-file")
    as_user = replace(bus, user=name, password=password)
    theirs = _view(as_user, path)
    # A second look as the same user would explain nothing; then it is a look without a login.
    others = _view(bus if bus.user != name else replace(bus, user=None, password=None), path)
    if theirs.event is None and others.event is None:
        raise path_not_found(path, theirs.paths)
    # Either of the two users may be the administrator.
    lists = theirs.lists if others.lists is None else others.lists
    allowed, why = decide(action, theirs, others) if lists is None else decide_exactly(action, theirs, others, lists)
    row = {"user": name, "action": action, "path": path, "decision": "allowed" if allowed else "refused", "why": why}
    Output(COLUMNS, form, value="decision").put_all([{**row, "groups": theirs.groups, "access": lists}])
    return Code.OK if allowed else Code.NOT_MET


def decide(action: str, theirs: View, others: View) -> tuple[bool, str]:
    """Return the decision for the user of the first view, explained by the second."""
    event, groups = theirs.event, _groups(theirs.groups, action)
    if event is None:
        held = _groups(theirs.groups, "fetch")
        return False, f"it is hidden: its fetchGroups have none of this user's ({held}), or no rule shows it"
    if action == "fetch":
        return True, "it is shown to this user"
    if action == "set" and event.is_method:
        return False, "it is a method; only states can be set"
    if action == "call" and not event.is_method:
        return False, "it is a state; only methods can be called"
    # ``fetch_only`` is meant for the user that looks: it may be read-only for all, or for this user.
    if not event.fetch_only:
        return True, f"it is open to everybody, or its {action}Groups have one of this user's ({groups})"
    if others.event is not None and not others.event.fetch_only:
        return False, f"its {action}Groups have none of this user's ({groups}), or no rule lets this user; others may"
    if event.is_method:
        return False, f"its callGroups have none of this user's ({groups}), or no rule lets this user"
    return (
        False,
        f"it is read-only for all, or its setGroups have none of this user's ({groups}), or no rule lets this user",
    )


def decide_exactly(action: str, theirs: View, others: View, lists: dict[str, list[str]]) -> tuple[bool, str]:
    """Return the decision for the user of the first view if the groups that are asked for are known."""
    event = theirs.event or others.event
    if event is None:
        return False, "it is not there"
    if (action == "set" and event.is_method) or (action == "call" and not event.is_method):
        # The kind of the element is the reason, whatever groups it asks for.
        return decide(action, View(event, theirs.groups, []), others)
    wanted, name = action, f"{action}Groups"
    if name not in lists and "fetchGroups" in lists:
        action, name = "fetch", "fetchGroups"  # all that may fetch it may set or call it
    asked, has = lists.get(name), _named(theirs.groups, action)
    if asked is not None and not set(asked) & set(has):
        hidden = "" if action == "fetch" or theirs.event else ", and it is hidden from this user"
        return False, f"its {name} are {_listed(asked)}; this user has {_listed(has)}{hidden}"
    if wanted == "set" and _is_read_only(theirs, others, lists):
        return False, "it is read-only: its owner takes no set from anybody"
    if asked is None:
        return True, f"it asks for no {name}"
    common = [group for group in asked if group in has]
    return True, f"its {name} are {_listed(asked)}; this user has {_listed(common)}"


def _is_read_only(theirs: View, others: View, lists: dict[str, list[str]]) -> bool:
    """Return whether no user can set it, as seen by a user with the groups for it."""
    asked = lists.get("setGroups")
    open_to = [view for view in (theirs, others) if asked is None or set(asked) & set(_named(view.groups, "set"))]
    return any(view.event is not None and view.event.fetch_only for view in open_to)


def _named(groups: Json, action: str) -> list[str]:
    names = groups.get(f"{action}Groups") if isinstance(groups, dict) else None
    return list(map(str, names or ()))


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _groups(groups: Json, action: str) -> str:
    return _listed(_named(groups, action))


access.add_command(check)
