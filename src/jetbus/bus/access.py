"""Who may fetch, set and call what: groups a user has against groups an element asks for.

An action without a list of groups is open to everybody; with one it takes a user who has at least one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jetbus.errors import Invalid

Groups = frozenset[str]


@dataclass(frozen=True, slots=True)
class Auth:
    """What an authenticated peer is: its user and the groups that user has."""

    user: str
    fetch_groups: tuple[str, ...]
    set_groups: tuple[str, ...]
    call_groups: tuple[str, ...]
    admin: bool = False

    def wire(self) -> dict[str, list[str]]:
        """The result of a successful authenticate."""
        return {
            "fetchGroups": list(self.fetch_groups),
            "setGroups": list(self.set_groups),
            "callGroups": list(self.call_groups),
        }


@dataclass(frozen=True, slots=True)
class Access:
    """What an element asks of those who fetch, set or call it. None: nothing."""

    fetch_groups: Groups | None = None
    set_groups: Groups | None = None
    call_groups: Groups | None = None

    def wire(self) -> dict[str, list[str]]:
        """The lists as an ``add`` has them."""
        lists = {"fetchGroups": self.fetch_groups, "setGroups": self.set_groups, "callGroups": self.call_groups}
        return {name: sorted(groups) for name, groups in lists.items() if groups is not None}

    def may_fetch(self, auth: Auth | None) -> bool:
        return self.fetch_groups is None or bool(auth and not self.fetch_groups.isdisjoint(auth.fetch_groups))

    def may_set(self, auth: Auth | None) -> bool:
        return self.set_groups is None or bool(auth and not self.set_groups.isdisjoint(auth.set_groups))

    def may_call(self, auth: Auth | None) -> bool:
        return self.call_groups is None or bool(auth and not self.call_groups.isdisjoint(auth.call_groups))


_CLASSIC = (("fetchGroups", "fetch_groups"), ("setGroups", "set_groups"), ("callGroups", "call_groups"))
_NODE_JET_3 = (("read", ("fetch_groups",)), ("write", ("set_groups", "call_groups")))


def read_access(given: Any) -> Access | None:
    """The ``access`` of an add: classic lists of groups, or node-jet 3's one group to read and one to write."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise Invalid("access", "access is an object with fetchGroups, setGroups and callGroups")
    asked: dict[str, Groups] = {}
    for name, slot in _CLASSIC:
        if given.get(name) is not None:
            asked[slot] = _groups(name, given[name])
    for name, slots in _NODE_JET_3:
        if given.get(name):
            asked.update(dict.fromkeys(slots, _groups(name, [given[name]])))
    return Access(**asked) if asked else None


def _groups(name: str, given: Any) -> Groups:
    if not isinstance(given, list) or not all(isinstance(group, str) for group in given):
        raise Invalid(name, f"{name} is a list of group names")
    return frozenset(given)
