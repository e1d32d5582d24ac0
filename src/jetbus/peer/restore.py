"""Comparison of two sets of values, and setting states back to earlier ones.

``jet diff``, ``jet restore`` and Radar share this. Nothing here does I/O: a caller finds the
differences by ``find_restorable``, sets each path with its own peer, and describes the outcome by ``describe_outcome``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from jetbus.errors import JetError
from jetbus.peer.values import encode_plain, plain

MISSING: Any = msgspec.UNSET
"""Value of a path on the side of a comparison that does not have it."""


class Difference(NamedTuple):
    """One path with different values; a side that does not have the path is ``MISSING``."""

    path: str
    before: Any
    after: Any

    @property
    def what(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        if self.before is MISSING:
            return "added"
        return "removed" if self.after is MISSING else "changed"


class SetOutcome(Protocol):
    """Result of a set, as the peers return it."""

    @property
    def adapted(self) -> bool:
        """True if the owner took another value than it was sent."""


def compare_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the paths that were added, removed or changed, in order.

    >>> [one.what for one in compare_values({"a": 1, "b": 2}, {"b": 3, "c": 4})]
    ['removed', 'changed', 'added']
    """
    for path in sorted(before.keys() | after.keys()):
        difference = Difference(path, before.get(path, MISSING), after.get(path, MISSING))
        if difference.what != "changed" or not _is_same(difference.before, difference.after):
            yield difference


def find_restorable(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences that a set can undo: states that exist on both sides; ``after`` is the earlier value."""
    return (one for one in compare_values(now, then) if one.what == "changed")


def describe_outcome(outcome: SetOutcome | JetError) -> str:
    """Return a few words about a state that was set back, or about its refusal."""
    if isinstance(outcome, JetError):
        return f"refused: {outcome}"
    return "adapted by its owner" if outcome.adapted else "set"


def is_refused(words: str) -> bool:
    """Return True if ``describe_outcome`` described a refusal."""
    return words.startswith("refused")


def _is_same(one: Any, other: Any) -> bool:
    """Compare as JSON: 1 and true differ, the order of members does not matter."""
    # Not for lists and dicts: inside of them Python takes 1 and true for the same.
    if type(one) is type(other) and one == other and not isinstance(one, dict | list):
        return True
    return _sort_members(one) == _sort_members(other)


def _sort_members(value: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(encode_plain(plain(value))), order="deterministic")
