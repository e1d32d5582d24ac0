"""Rights by path: the groups that may add, fetch, set and call elements, by the rules of the users file.

A group has rules, each an action and a glob::

    machines   add     plant/{user}/**       a machine adds below its own name
    operators  fetch   plant/**
    operators  set     plant/*/setpoint
    *          fetch   weather/**            everybody, logged in or not

The globs are tested once per element, when it is added or when the rules change. The result is a set of *keys* per
action: a group, or a group and a user where ``{user}`` stands in the glob. A user has keys, too, and may act on the
elements that share a key with it. So a fetch, set or call costs the comparison of two small sets, and nothing if there
are no rules.

An action that no rule names at a path is closed to all, or open to all, as ``closed`` says. In the open
case set and call follow fetch. The daemon's own elements are open unless a rule starts with ``$``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jetbus.errors import InvalidRule
from jetbus.paths import is_daemons
from jetbus.rules import parse_rule
from jetbus.rules.operators import PathTest

if TYPE_CHECKING:
    from jetbus.bus.access import Auth

Key = str | tuple[str, str]
Keys = frozenset[Key]

ACTIONS = ("add", "fetch", "set", "call")
EVERYBODY = "*"
"""The group that everybody is in, logged in or not."""
STRANGER: Keys = frozenset((EVERYBODY,))
"""The keys of a peer that is not logged in."""
USER = "{user}"

_CACHED_MAX = 4096


def keys_of(user: str, groups: Iterable[str]) -> Keys:
    """Return the keys of a user with these groups for an action."""
    return frozenset((EVERYBODY, *groups, *((group, user) for group in groups)))


@dataclass(frozen=True, slots=True)
class Rights:
    """Keys that open one path, per action. None: no rule is about that action, and it is open."""

    add: Keys | None = None
    fetch: Keys | None = None
    set: Keys | None = None
    call: Keys | None = None

    @property
    def restrict(self) -> bool:
        """True if fetch, set or call of the path are not open to everybody."""
        return self.fetch is not None or self.set is not None or self.call is not None

    def may_add(self, auth: Auth | None) -> bool:
        return self.add is None or not self.add.isdisjoint(auth.add_keys if auth else STRANGER)

    def may_fetch(self, auth: Auth | None) -> bool:
        return self.fetch is None or not self.fetch.isdisjoint(auth.fetch_keys if auth else STRANGER)

    def may_set(self, auth: Auth | None) -> bool:
        if self.set is None:
            return self.may_fetch(auth)
        return not self.set.isdisjoint(auth.set_keys if auth else STRANGER)

    def may_call(self, auth: Auth | None) -> bool:
        if self.call is None:
            return self.may_fetch(auth)
        return not self.call.isdisjoint(auth.call_keys if auth else STRANGER)


class PathRule(NamedTuple):
    """One rule: the group that may do the action where the glob matches."""

    action: str
    group: str
    text: str
    matches: PathTest
    user_at: int | None
    """The segment that must be the name of the user."""
    start: str = ""
    """Prefix of every matching path."""
    reserve_s: float = 0.0
    """Seconds for which an added path stays reserved for its user after the connection is lost."""

    def key(self, path: str) -> Key:
        """Return the key that the rule gives to a path that it matches."""
        return self.group if self.user_at is None else (self.group, path.split("/")[self.user_at])


def read_path_rule(action: str, group: str, text: str, reserve_s: float = 0.0) -> PathRule:
    """Read a glob, in which a whole segment may be ``{user}``; raise ValueError with the reason."""
    segments = text.split("/")
    if text.count(USER) != segments.count(USER) or segments.count(USER) > 1:
        raise ValueError(f"{USER} must be one whole segment, such as plant/{USER}/**")
    user_at = segments.index(USER) if USER in segments else None
    if user_at is not None:
        if any("**" in segment for segment in segments[:user_at]):
            raise ValueError(f"{USER} must stand before the first **")
        if group == EVERYBODY:
            raise ValueError(f"{USER} cannot be used for {EVERYBODY}, which includes peers that are not logged in")
    if not text or any(character.isspace() for character in text):
        raise ValueError("it must be a path or a glob without spaces, such as plant/**")
    try:
        rule = parse_rule("/".join("*" if segment == USER else segment for segment in segments))
    except InvalidRule as problem:
        raise ValueError(str(problem)) from None
    if rule.value or rule.case_insensitive or text.startswith('"'):
        raise ValueError("it must be a path or a glob, without tests and quotes")
    # A plain prefix, which rejects most paths without matching the glob.
    start = text.partition("*")[0].partition(USER)[0]
    return PathRule(action, group, text, rule.matches_path, user_at, start, reserve_s)


class PathRules:
    """All rules of a daemon."""

    def __init__(self, rules: Iterable[PathRule], *, closed: bool) -> None:
        self._globs: dict[str, list[PathRule]] = {}
        """Rules by their text: each glob is tested once."""
        for rule in rules:
            self._globs.setdefault(rule.text, []).append(rule)
        self._closed = closed
        self.reserves = any(rule.reserve_s for same in self._globs.values() for rule in same)
        """True if any rule reserves paths for their users."""
        self._known: dict[Rights, Rights] = {}
        self._last: tuple[str | None, Rights] = (None, Rights())

    def rights(self, path: str) -> Rights:
        """Return the rights at a path; equal ones are the same object, so that a million elements share a few."""
        last, rights = self._last
        if path == last:  # an add asks twice
            return rights
        daemons = is_daemons(path)
        found: dict[str, set[Key]] = {}
        for rule in self._matching(path):
            # ``**`` does not mean the daemon's own elements, here as in fetches.
            if not daemons or rule.text.startswith("$"):
                found.setdefault(rule.action, set()).add(rule.key(path))
        missing = frozenset[Key]() if self._closed and not daemons else None
        rights = Rights(*(frozenset(found[action]) if action in found else missing for action in ACTIONS))
        # With ``{user}`` there are as many rights as users. Elements keep theirs; only the sharing starts anew.
        if len(self._known) >= _CACHED_MAX:
            self._known.clear()
        rights = self._known.setdefault(rights, rights)
        self._last = path, rights
        return rights

    def reserve_s(self, path: str, auth: Auth) -> float:
        """Return the seconds for which a path stays reserved, by the rules that let the user add it."""
        found = [
            rule.reserve_s for rule in self._matching(path) if rule.action == "add" and rule.key(path) in auth.add_keys
        ]
        return max(found, default=0.0)

    def _matching(self, path: str) -> Iterator[PathRule]:
        for rules in self._globs.values():
            first = rules[0]
            if path.startswith(first.start) and first.matches(path):
                yield from rules
