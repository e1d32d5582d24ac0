"""Operators of fetch rules: tests of paths and values, and field paths that lead into a value.

Operands come from the network: each operator checks its operand, and field paths are parsed, never evaluated. The time
of a test is linear in the length of its operand and of the path or value. Long lists are faster: they become sets and
sorted lists when a rule is composed.

Adding an operator is one row in ``PATH_TESTS`` or ``VALUE_TESTS`` and, where it does more than compare, one small
function.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jetbus.errors import InvalidRule
from jetbus.json_types import Json
from jetbus.rules.work import meter

PathTest = Callable[[str], bool]
ValueTest = Callable[[Json], bool]
Steps = tuple[str | int, ...]
"""Parsed field path."""

ABSENT: Any = object()
"""Value of a missing field."""


# -- tests of the path


class PathOperator(NamedTuple):
    """A path operator: a relation between the path and a text, or the texts of a list.

    A row is data and not code, so that it can be translated: Spark turns it into columns.
    """

    relation: str
    """One of ``equals``, ``contains``, ``startsWith``, ``endsWith``."""
    of: str = ""
    """``any`` or ``all`` for the texts of a list; empty if the operator takes a single text."""
    negated: bool = False

    @property
    def takes_list(self) -> bool:
        """True if the operand is a list of texts."""
        return self.of != ""

    def test(self, operand: Json) -> PathTest:
        """Return the test for an operand."""
        if not self.takes_list:
            return _SINGLE[self.relation][self.negated](operand)
        found = _LISTS[self.of](self.relation, operand)
        return (lambda path: not found(path)) if self.negated else found


PATH_TESTS: dict[str, PathOperator] = {
    "equals": PathOperator("equals"),
    "equalsNot": PathOperator("equals", negated=True),
    "contains": PathOperator("contains"),
    "containsNot": PathOperator("contains", negated=True),
    "containsAllOf": PathOperator("contains", of="all"),
    "containsOneOf": PathOperator("contains", of="any"),
    "startsWith": PathOperator("startsWith"),
    "startsNotWith": PathOperator("startsWith", negated=True),
    "endsWith": PathOperator("endsWith"),
    "endsNotWith": PathOperator("endsWith", negated=True),
    "equalsOneOf": PathOperator("equals", of="any"),
    "equalsNotOneOf": PathOperator("equals", of="any", negated=True),
}

_SINGLE: dict[str, tuple[Callable[[str], PathTest], Callable[[str], PathTest]]] = {
    "equals": (lambda want: lambda path: path == want, lambda want: lambda path: path != want),
    "contains": (lambda part: lambda path: part in path, lambda part: lambda path: part not in path),
    "startsWith": (
        lambda start: lambda path: path.startswith(start),
        lambda start: lambda path: not path.startswith(start),
    ),
    "endsWith": (lambda end: lambda path: path.endswith(end), lambda end: lambda path: not path.endswith(end)),
}
"""Tests with a single text by relation, plain and negated. Most rules have no others, so these are the fastest."""

FEW = 16
"""Up to this many texts are tested one by one, which is faster than a look-up, and are not counted as work."""


def _any_of(relation: str, texts: Sequence[str]) -> PathTest:
    if relation == "equals":
        # The method of the set is the test, without a Python function around it.
        return frozenset(texts).__contains__
    # An empty text is in every path and is without a first character to look up.
    if relation == "contains" and len(texts) > FEW and "" not in texts:
        return _contains_one_of(texts)
    tests = [_SINGLE[relation][False](text) for text in dict.fromkeys(texts)]
    return lambda path: any(test(path) for test in tests)


def _all_of(relation: str, texts: Sequence[str]) -> PathTest:
    # The longest text is the least likely to be found.
    tests = [_SINGLE[relation][False](text) for text in sorted(set(texts), key=len, reverse=True)]
    if len(tests) <= FEW:
        return lambda path: all(test(path) for test in tests)

    def test_all(path: str) -> bool:
        meter.units += len(tests)
        return all(test(path) for test in tests)

    return test_all


_LISTS: dict[str, Callable[[str, Sequence[str]], PathTest]] = {"any": _any_of, "all": _all_of}


def _contains_one_of(texts: Iterable[str]) -> PathTest:
    """Return a test that looks for many texts in a path at once, with one look-up for each character of the path.

    A text that starts with another text of the list is redundant and left out. Of the others, in order, only one can
    occur at a given position of the path: the greatest one that is not greater than the rest of the path there.
    """
    ordered: list[str] = []
    # In sorted order, the texts that start with another one follow it directly, so the last one kept is enough to
    # compare with.
    for text in sorted(texts):
        if not ordered or not text.startswith(ordered[-1]):
            ordered.append(text)
    # The first characters of all texts, in a set, reject nearly every position of a path at once.
    size = min(3, *map(len, ordered))
    beginnings = {text[:size] for text in ordered}

    def test(path: str) -> bool:
        meter.units += len(path)
        for at in range(len(path) - size + 1):
            if path[at : at + size] in beginnings:
                rest = path[at:]
                # The copy of the rest grows with the path, so one look-up in a very long path costs more than one unit.
                meter.units += 1 + (len(rest) >> 6)
                if rest.startswith(ordered[bisect_right(ordered, rest) - 1]):
                    return True
        return False

    return test


# -- tests of the value


def _is_number(value: Json) -> bool:
    # bool is a subclass of int in Python, but true is not a number in JSON.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_kind(a: Json, b: Json) -> bool:
    # Nothing else has an order. Python would raise TypeError, while an event is delivered to many peers.
    return (_is_number(a) and _is_number(b)) or (isinstance(a, str) and isinstance(b, str))


def _equal(a: Json, b: Json) -> bool:
    """Compare JSON primitives: true does not equal 1, and lists and objects equal nothing."""
    if isinstance(a, list | dict) or isinstance(b, list | dict):
        return False
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _keys(members: Iterable[Json]) -> set[tuple[bool, Json]]:
    """Return keys of the primitives among some values; equal keys mean equal values in the sense of ``_equal``."""
    # True == 1 with the same hash, so the type has to be a part of the key. Lists and objects have no hash.
    return {(isinstance(member, bool), member) for member in members if not isinstance(member, list | dict)}


def _has_one_of(some: list[Json]) -> ValueTest:
    wanted = _keys(some)

    def test(value: Json) -> bool:
        if not isinstance(value, list):
            return False
        if len(value) > FEW:
            meter.units += len(value)
        return any(
            (isinstance(member, bool), member) in wanted for member in value if not isinstance(member, list | dict)
        )

    return test


def _has_all_of(every: list[Json]) -> ValueTest:
    wanted = _keys(every)
    # They equal nothing (see ``_equal``), so no list can have them as members.
    if any(isinstance(member, list | dict) for member in every):
        return lambda _value: False

    def test(value: Json) -> bool:
        if not isinstance(value, list) or len(value) < len(wanted):
            return False
        if len(value) > FEW:
            meter.units += len(value)
        return wanted <= _keys(value)

    return test


TYPES: dict[str, ValueTest] = {
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    # As JavaScript's typeof, on which the first daemons relied: null and arrays are objects.
    "object": lambda value: value is None or isinstance(value, list | dict),
}


def _is_type(name: str) -> ValueTest:
    test = TYPES.get(name)
    if test is None:
        raise InvalidRule("isType", f"isType takes one of {', '.join(TYPES)}, not {name!r}")
    return test


def _anything(_operand: Json) -> bool:
    return True


class ValueOperator(NamedTuple):
    """A value operator: a check of its operand, and a function from the operand to the test."""

    accepts: Callable[[Json], bool]
    test: Callable[[Json], ValueTest]


VALUE_TESTS: dict[str, ValueOperator] = {
    "lessThan": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value < limit
    ),
    "greaterThan": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value > limit
    ),
    "atMost": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value <= limit
    ),
    "atLeast": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value >= limit
    ),
    "equals": ValueOperator(_anything, lambda wanted: lambda value: _equal(value, wanted)),
    "equalsNot": ValueOperator(_anything, lambda wanted: lambda value: not _equal(value, wanted)),
    "isType": ValueOperator(lambda x: isinstance(x, str), _is_type),
    "hasOneOf": ValueOperator(lambda x: isinstance(x, list), _has_one_of),
    "hasAllOf": ValueOperator(lambda x: isinstance(x, list), _has_all_of),
}

# At most nine digits: no list is longer, and int() of a very long number takes time.
_FIRST_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")
_NEXT_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]")


def parse_field(text: str) -> Steps:
    """Return the steps of a field path: those of ``a.b[1].c`` are ``("a", "b", 1, "c")``, of an empty text none.

    >>> parse_field("a.b[1]")
    ('a', 'b', 1)
    """
    steps: list[str | int] = []
    end = 0
    while end < len(text):
        step = (_NEXT_STEP if steps else _FIRST_STEP).match(text, end)
        if step is None:
            raise InvalidRule(text, f"{text!r} is no field path such as a.b[1]")
        steps.append(step[1] if step[1] is not None else int(step[2]))
        end = step.end()
    return tuple(steps)


def format_field(steps: Steps) -> str:
    """Return the text of a field path: the inverse of ``parse_field``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def find_field(value: Json, steps: Steps) -> Json:
    """Return the field of a value at a field path, or ``ABSENT``."""
    for step in steps:
        # Values may have any shape at any time, so a step that does not fit is not an error.
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if step < len(value) else ABSENT
        else:
            return ABSENT
    return value
