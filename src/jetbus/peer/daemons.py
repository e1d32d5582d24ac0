"""Table of daemons: which words of a fetch each understands, and what else a peer must know of it.

Ours knows every word of a rule. The others know fewer, and node-jet 3 gets some of them wrong: a peer asks each daemon
only what it answers rightly, which may be more than was wanted, and does the rest itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jetbus.rules import PATH_TESTS, VALUE_TESTS, Rule, write_rule

_FOLD = "caseInsensitive"
_EVERY_PATH = {"startsWith": ""}
"""node-jet 3 wants a path rule, cjet wants it not empty."""


class Words(NamedTuple):
    """The words of a rule that a daemon understands."""

    path: frozenset[str]
    value: frozenset[str]
    sorts: bool
    ours: bool = False
    shared_ids: bool = False
    """Whether the fetches of all its peers must have different ids."""
    drops_value_as_result: bool = False
    """Whether an owner is not told that the value is wanted as the result of a set."""
    has_timeouts: bool = True
    """Whether it ends a request that the owner does not answer."""

    def ask(self, rule: Rule) -> tuple[dict[str, Any], bool]:
        """The parameters of a fetch or get, and whether what they bring needs no further test."""
        params, told_all = write_rule(rule)
        if self.ours:
            if not told_all:
                params.pop("sort", None)
            return params, told_all
        asked = {name: self._known(name, params[name]) for name in params if name != "sort"}
        told_all = told_all and asked.items() >= {name: params[name] for name in asked}.items()
        asked = {name: tests for name, tests in asked.items() if tests}
        asked.setdefault("path", dict(_EVERY_PATH))
        if "sort" in params and self.sorts and told_all:
            asked["sort"] = params["sort"]
        return asked, False

    def _known(self, name: str, tests: Mapping[str, Any]) -> dict[str, Any]:
        if name == "path":
            folded = _FOLD in tests and _FOLD not in self.path
            return {} if folded else {op: operand for op, operand in tests.items() if op in self.path}
        if name == "value":
            return {op: operand for op, operand in tests.items() if op in self.value}
        return {field: known for field, some in tests.items() if (known := self._known("value", some))}


_PATH = frozenset(PATH_TESTS) | {_FOLD}
_POSITIVE = frozenset(op for op in PATH_TESTS if "Not" not in op)
_OURS = Words(_PATH, frozenset(VALUE_TESTS), True, ours=True)
_NODE_JET = Words(_PATH, frozenset(VALUE_TESTS) - {"hasOneOf", "hasAllOf"}, True)
_NODE_JET_3 = Words(_POSITIVE, frozenset(), False, shared_ids=True, has_timeouts=False)
_COMMON = Words(
    frozenset({"equals", "equalsNot", "contains", "containsAllOf", "startsWith", "endsWith", _FOLD}), frozenset(), False
)
_CJET = _COMMON._replace(drops_value_as_result=True)


def words_of(daemon: Mapping[str, Any]) -> Words:
    """The words of a daemon, by what it says of itself; of an unknown one those that all know."""
    if daemon.get("name") == "jetbus":
        return _OURS
    if daemon.get("name") != "node-jet":
        return _CJET if daemon.get("name") == "cjet" else _COMMON
    features = daemon.get("features")
    return _NODE_JET_3 if isinstance(features, dict) and "asNotification" in features else _NODE_JET
