"""The operators of fetch rules: tests on paths and on values, and the field paths that lead into a value.

Operands come from the network: each operator says what it takes, and field paths are parsed, never evaluated. Adding
an operator is one row in ``PATH_TESTS`` or ``VALUE_TESTS`` and, where it does more than compare, one small function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from jetbus.errors import InvalidRule

PathTest = Callable[[str], bool]
ValueTest = Callable[[Any], bool]
Steps = tuple[str | int, ...]
"""A field path, parsed."""

ABSENT: Any = object()
"""The value of a field that is not there."""


# -- tests on the path


class PathOperator(NamedTuple):
    """One path operator: whether it takes a list, and the test it makes of its operand."""

    takes_list: bool
    test: Callable[[Any], PathTest]


PATH_TESTS: dict[str, PathOperator] = {
    "equals": PathOperator(False, lambda want: lambda path: path == want),
    "equalsNot": PathOperator(False, lambda want: lambda path: path != want),
    "contains": PathOperator(False, lambda part: lambda path: part in path),
    "containsNot": PathOperator(False, lambda part: lambda path: part not in path),
    "containsAllOf": PathOperator(True, lambda parts: lambda path: all(part in path for part in parts)),
    "containsOneOf": PathOperator(True, lambda parts: lambda path: any(part in path for part in parts)),
    "startsWith": PathOperator(False, lambda start: lambda path: path.startswith(start)),
    "startsNotWith": PathOperator(False, lambda start: lambda path: not path.startswith(start)),
    "endsWith": PathOperator(False, lambda end: lambda path: path.endswith(end)),
    "endsNotWith": PathOperator(False, lambda end: lambda path: not path.endswith(end)),
    "equalsOneOf": PathOperator(True, lambda wanted: frozenset(wanted).__contains__),
    "equalsNotOneOf": PathOperator(True, lambda unwanted: lambda path: path not in unwanted),
}


# -- tests on the value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_kind(a: Any, b: Any) -> bool:
    return (_is_number(a) and _is_number(b)) or (isinstance(a, str) and isinstance(b, str))


def _equal(a: Any, b: Any) -> bool:
    """Equality of JSON primitives: true is not 1, and lists and objects equal nothing."""
    if isinstance(a, list | dict) or isinstance(b, list | dict):
        return False
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _holds(value: Any, wanted: Any) -> bool:
    return any(_equal(member, wanted) for member in value)


TYPES: dict[str, ValueTest] = {
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: value is None or isinstance(value, list | dict),
}


def _is_type(name: str) -> ValueTest:
    test = TYPES.get(name)
    if test is None:
        raise InvalidRule("isType", f"isType takes one of {', '.join(TYPES)}, not {name!r}")
    return test


def _anything(_operand: Any) -> bool:
    return True


class ValueOperator(NamedTuple):
    """One value operator: what it takes as operand, and the test it makes of it."""

    accepts: Callable[[Any], bool]
    test: Callable[[Any], ValueTest]


VALUE_TESTS: dict[str, ValueOperator] = {
    "lessThan": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value < limit
    ),
    "greaterThan": ValueOperator(
        lambda x: _same_kind(x, x), lambda limit: lambda value: _same_kind(value, limit) and value > limit
    ),
    "equals": ValueOperator(_anything, lambda wanted: lambda value: _equal(value, wanted)),
    "equalsNot": ValueOperator(_anything, lambda wanted: lambda value: not _equal(value, wanted)),
    "isType": ValueOperator(lambda x: isinstance(x, str), _is_type),
    "hasOneOf": ValueOperator(
        lambda x: isinstance(x, list),
        lambda some: lambda value: isinstance(value, list) and any(_holds(value, one) for one in some),
    ),
    "hasAllOf": ValueOperator(
        lambda x: isinstance(x, list),
        lambda every: lambda value: isinstance(value, list) and all(_holds(value, one) for one in every),
    ),
}

_FIRST_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")
_NEXT_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]")


def parse_field(text: str) -> Steps:
    """The steps of a field path: ``a.b[1].c`` is ``("a", "b", 1, "c")``, the empty text is the value itself.

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


def field_text(steps: Steps) -> str:
    """A field path as text: the inverse of ``parse_field``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def field_of(value: Any, steps: Steps) -> Any:
    """What is at the field path in ``value``, or ``ABSENT``."""
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if step < len(value) else ABSENT
        else:
            return ABSENT
    return value
