"""Features of the daemons: which operators of a fetch each understands, and other differences.

jetbus knows every operator of a rule. Other daemons know fewer, and node-jet 3 gets some of them wrong. A peer sends
each daemon only the tests that it does correctly, which may select too much, and applies the rest of the rule itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from jetbus.json_types import DaemonInfo, Json, JsonObject
from jetbus.rules import PATH_TESTS, VALUE_TESTS, Rule, write_rule

_FOLD = "caseInsensitive"
_EVERY_PATH = {"startsWith": ""}
"""Matches everything: node-jet 3 requires a path rule, and cjet requires one that is not empty."""


class Features(NamedTuple):
    """Abilities of a kind of daemon."""

    path_operators: frozenset[str]
    value_operators: frozenset[str]
    sorts: bool
    is_jetbus: bool = False
    needs_unique_fetch_ids: bool = False
    """True if fetches of different peers must have different ids."""
    ignores_value_as_result: bool = False
    """True if the owner never learns that the value is wanted as the result of a set."""
    has_timeouts: bool = True
    """True if it ends a request that the owner does not answer."""
    batch_bytes: float = float("inf")
    """Length of the batches that it is known to accept; longer ones are split, which does no harm."""

    def translate(self, rule: Rule) -> tuple[JsonObject, bool]:
        """Return the parameters of a fetch or get, and whether its results need no further test."""
        params, is_complete = write_rule(rule)
        if self.is_jetbus:
            if not is_complete:
                params.pop("sort", None)
            return params, is_complete
        known = {name: self._select(name, params[name]) for name in params if name != "sort"}
        # Sorting is left to the daemon only if it selects exactly the matches of the rule; else the window is wrong.
        is_complete = is_complete and known.items() >= {name: params[name] for name in known}.items()
        known = {name: tests for name, tests in known.items() if tests}
        known.setdefault("path", dict(_EVERY_PATH))
        if "sort" in params and self.sorts and is_complete:
            known["sort"] = params["sort"]
        # Results of other daemons are always tested again: they may be wrong even about tests that they know.
        return known, False

    def _select(self, name: str, tests: Mapping[str, Json]) -> JsonObject:
        """Return those tests of a rule that the daemon knows."""
        if name == "path":
            is_folded = _FOLD in tests and _FOLD not in self.path_operators
            return {} if is_folded else {op: operand for op, operand in tests.items() if op in self.path_operators}
        if name == "value":
            return {op: operand for op, operand in tests.items() if op in self.value_operators}
        return {field: known for field, some in tests.items() if (known := self._select("value", some))}


_PATH = frozenset(PATH_TESTS) | {_FOLD}
_POSITIVE = frozenset(op for op in PATH_TESTS if "Not" not in op)
_JETBUS = Features(_PATH, frozenset(VALUE_TESTS), True, is_jetbus=True)
_NODE_JET = Features(_PATH, frozenset(VALUE_TESTS) - {"hasOneOf", "hasAllOf", "atLeast", "atMost"}, True)
_NODE_JET_3 = Features(_POSITIVE, frozenset(), False, needs_unique_fetch_ids=True, has_timeouts=False)
_COMMON = Features(
    frozenset({"equals", "equalsNot", "contains", "containsAllOf", "startsWith", "endsWith", _FOLD}), frozenset(), False
)
_CJET = _COMMON._replace(ignores_value_as_result=True, batch_bytes=512)


def read_info(result: Json) -> DaemonInfo:
    """Return the result of ``info``; empty if the daemon answered with an error or with anything but an object."""
    return cast(DaemonInfo, result) if isinstance(result, dict) else {}


def features_of(daemon: DaemonInfo) -> Features:
    """Return the features of a daemon by its info; for an unknown one those that all daemons have."""
    if daemon.get("name") == "jetbus":
        return _JETBUS
    if daemon.get("name") != "node-jet":
        return _CJET if daemon.get("name") == "cjet" else _COMMON
    # All versions call themselves node-jet; this feature is reported by version 3 only.
    features = daemon.get("features")
    return _NODE_JET_3 if isinstance(features, dict) and "asNotification" in features else _NODE_JET
