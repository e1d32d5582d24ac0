"""Access: users have groups, elements require groups, and rules by path come on top.

An action with a list of groups is open to users with at least one of them. Fetch without a list is open to all;
set and call without a list are open to all that may fetch the element: a peer cannot ask for a hidden element.
Rules by path, which are in ``rights``, come on top: both the element's own lists and the rules must allow an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jetbus.bus.rights import Keys, PathRules, Rights, keys_of
from jetbus.errors import Invalid
from jetbus.json_types import Json

Groups = frozenset[str]


@dataclass(frozen=True, slots=True)
class Auth:
    """The user of an authenticated peer, with the groups of that user."""

    user: str
    fetch_groups: tuple[str, ...]
    set_groups: tuple[str, ...]
    call_groups: tuple[str, ...]
    admin: bool = False
    add_groups: tuple[str, ...] = ()
    add_keys: Keys = field(init=False, repr=False, compare=False)
    fetch_keys: Keys = field(init=False, repr=False, compare=False)
    set_keys: Keys = field(init=False, repr=False, compare=False)
    call_keys: Keys = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for action in ("add", "fetch", "set", "call"):
            keys = keys_of(self.user, getattr(self, f"{action}_groups"))
            object.__setattr__(self, f"{action}_keys", keys)

    def wire(self) -> dict[str, list[str]]:
        """Return the result of a successful authenticate."""
        return {
            "fetchGroups": list(self.fetch_groups),
            "setGroups": list(self.set_groups),
            "callGroups": list(self.call_groups),
        }


@dataclass(frozen=True, slots=True)
class Access:
    """Groups that an element requires of peers that fetch, set or call it. None: no requirement."""

    fetch_groups: Groups | None = None
    set_groups: Groups | None = None
    call_groups: Groups | None = None
    rights: Rights | None = None
    """Requirements of the rules by path."""

    def wire(self) -> dict[str, list[str]]:
        """Return the lists in the form of an ``add``."""
        lists = {"fetchGroups": self.fetch_groups, "setGroups": self.set_groups, "callGroups": self.call_groups}
        return {name: sorted(groups) for name, groups in lists.items() if groups is not None}

    def may_fetch(self, auth: Auth | None) -> bool:
        return (self.rights is None or self.rights.may_fetch(auth)) and self._is_shown_to(auth)

    def may_set(self, auth: Auth | None) -> bool:
        if self.rights is not None and not self.rights.may_set(auth):
            return False
        if self.set_groups is None:
            return self._is_shown_to(auth)
        return bool(auth and not self.set_groups.isdisjoint(auth.set_groups))

    def may_call(self, auth: Auth | None) -> bool:
        if self.rights is not None and not self.rights.may_call(auth):
            return False
        if self.call_groups is None:
            return self._is_shown_to(auth)
        return bool(auth and not self.call_groups.isdisjoint(auth.call_groups))

    def _is_shown_to(self, auth: Auth | None) -> bool:
        """Return True if the element's own list lets a peer fetch it."""
        return self.fetch_groups is None or bool(auth and not self.fetch_groups.isdisjoint(auth.fetch_groups))

    def ruled(self, rights: Rights | None) -> Access:
        """Return the same lists with the rights at the element's path."""
        return replace(self, rights=rights)


class AdminsOnly(Access):
    """Access of elements that only administrators may see, whatever the rules say."""

    __slots__ = ()

    def may_fetch(self, auth: Auth | None) -> bool:
        return auth is not None and auth.admin

    may_set = may_call = may_fetch

    def ruled(self, _rights: Rights | None) -> Access:
        return self


ADMINS_ONLY = AdminsOnly()
_NO_LISTS = Access()


def ruled(access: Access | None, path: str, rules: PathRules | None) -> Access | None:
    """Return the access of an element at a path under the rules; ``access`` has the element's own lists."""
    rights = rules.rights(path) if rules is not None else None
    if rights is not None and rights.restrict:
        return (access or _NO_LISTS).ruled(rights)
    # No rule applies, and none did before.
    if access is None or access.rights is None:
        return access
    lists = access.ruled(None)
    return None if lists == _NO_LISTS else lists


_CLASSIC = (("fetchGroups", "fetch_groups"), ("setGroups", "set_groups"), ("callGroups", "call_groups"))
_NODE_JET_3 = (("read", ("fetch_groups",)), ("write", ("set_groups", "call_groups")))


def read_access(given: Json) -> Access | None:
    """Return the ``access`` of an add: classic lists of groups, or node-jet 3's one group to read and one to write."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise Invalid("access", "access is an object with fetchGroups, setGroups and callGroups")
    asked: dict[str, Groups] = {}
    for name, slot in _CLASSIC:
        if given.get(name) is not None:
            asked[slot] = _groups(name, given[name])
    for name, slots in _NODE_JET_3:
        # node-jet 3 sends an empty group where it means none.
        if given.get(name):
            asked.update(dict.fromkeys(slots, _groups(name, [given[name]])))
    return Access(asked.get("fetch_groups"), asked.get("set_groups"), asked.get("call_groups")) if asked else None


def _groups(name: str, given: Json) -> Groups:
    if not isinstance(given, list) or not all(isinstance(group, str) for group in given):
        raise Invalid(name, f"{name} is a list of group names")
    return frozenset(given)
