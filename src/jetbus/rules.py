"""Fetch rules: which states and methods a fetch is about, in which order, and how one is read from a request.

Every dialect's spelling ends in one ``Rule``: classic ``path``/``value``/``valueField``/``sort``, node-jet 3's
``{"operator", "value"}`` members and the 2012 ``matcher`` with Lua patterns. A rule is immutable and comparable, so
that equal fetches can share their work. Operands come from the network: they are checked once, here, and field paths
are parsed, never evaluated. Adding an operator is one row in ``PATH_TESTS`` or ``VALUE_TESTS`` and one small
function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jetbus.errors import InvalidRule, WrongType
from jetbus.luapattern import lua_matcher

__all__ = ["EVERYTHING", "PATH_TESTS", "RULES_MAX", "TYPES", "VALUE_TESTS", "Rule", "Sort", "read_matcher", "read_rule"]

PathTest = Callable[[str], bool]
ValueTest = Callable[[Any], bool]

RULES_MAX = 100
"""Operators, alternatives and fields in one rule, at the most."""

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
    "equalsOneOf": PathOperator(True, lambda wanted: lambda path: path in wanted),
    "equalsNotOneOf": PathOperator(True, lambda wanted: lambda path: path not in wanted),
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

_FIELD = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,9})\]")


def parse_field(text: str) -> tuple[str | int, ...]:
    """The steps of a field path: ``a.b[1].c`` is ``("a", "b", 1, "c")``, the empty text is the value itself.

    >>> parse_field("a.b[1]")
    ('a', 'b', 1)
    """
    steps: list[str | int] = []
    end = 0
    while end < len(text):
        step = _FIELD.match(text, end)
        if step is None:
            raise InvalidRule(text, f"{text!r} is no field path such as a.b[1]")
        steps.append(step[1] if step[1] is not None else int(step[2]))
        end = step.end()
    return tuple(steps)


def field_of(value: Any, steps: tuple[str | int, ...]) -> Any:
    """What is at the field path in ``value``, or ``ABSENT``."""
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if step < len(value) else ABSENT
        else:
            return ABSENT
    return value


# -- the rule


@dataclass(frozen=True, slots=True)
class Sort:
    """The order and window of a sorted fetch: positions ``first`` to ``last``, counted from 1."""

    by: tuple[str | int, ...] | None = None
    """None: by path; otherwise the field path of the value to sort by."""
    type: str = "string"
    descending: bool = False
    first: int = 1
    last: int = 10

    def key(self, path: str, value: Any) -> Any:
        """What to sort an entry by; only for values that the rule has matched."""
        return path if self.by is None else field_of(value, self.by)


@dataclass(frozen=True)
class Rule:
    """What a fetch is about. All tests must hold.

    >>> rule = read_rule({"path": {"startsWith": "plant/"}, "value": {"greaterThan": 7}})
    >>> rule.matches_path("plant/pump/speed"), rule.matches_value(8)
    (True, True)
    """

    path: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    case_insensitive: bool = False
    value: tuple[tuple[tuple[str | int, ...], str, str], ...] = ()
    """Field path, operator and operand as JSON text (so that equal rules are equal)."""
    lua_match: tuple[str, ...] = ()
    lua_unmatch: tuple[str, ...] = ()
    sort: Sort | None = None

    @cached_property
    def matches_path(self) -> PathTest:
        """The test on a path, composed once."""
        tests = [PATH_TESTS[op].test(operand) for op, operand in self.path]
        if self.lua_match:
            any_of = [lua_matcher(pattern) for pattern in self.lua_match]
            tests.append(lambda path: any(test(path) for test in any_of))
        none_of = [lua_matcher(pattern) for pattern in self.lua_unmatch]
        if none_of:
            tests.append(lambda path: not any(test(path) for test in none_of))
        if not tests:
            return lambda _path: True
        together = tests[0] if len(tests) == 1 else (lambda path: all(test(path) for test in tests))
        return (lambda path: together(path.lower())) if self.case_insensitive else together

    @cached_property
    def matches_value(self) -> ValueTest | None:
        """The test on a decoded value, or None when the rule does not look at values."""
        tests = [(steps, VALUE_TESTS[op].test(json.loads(operand))) for steps, op, operand in self.value]
        if not tests:
            return None
        if len(tests) == 1 and not tests[0][0]:
            return tests[0][1]

        def test_all(value: Any) -> bool:
            for steps, test in tests:
                field = field_of(value, steps)
                if field is ABSENT or not test(field):
                    return False
            return True

        return test_all

    @cached_property
    def exact_paths(self) -> tuple[str, ...] | None:
        """All paths that can match, when the rule names them; for finding a rule by path without testing it."""
        if self.case_insensitive:
            return None
        for op, operand in self.path:
            if op == "equals" and isinstance(operand, str):
                return (operand,)
            if op == "equalsOneOf" and isinstance(operand, tuple):
                return tuple(dict.fromkeys(operand))
        return None

    @cached_property
    def prefix(self) -> str:
        """What every matching path starts with, as far as the rule tells."""
        starts = [str(operand) for op, operand in self.path if op == "startsWith" and not self.case_insensitive]
        return max(starts, key=len, default="")

    @cached_property
    def is_found_by_index(self) -> bool:
        """Whether ``exact_paths`` or ``prefix`` say all there is to say about the path."""
        return (
            not self.lua_match
            and not self.lua_unmatch
            and (not self.path or (len(self.path) == 1 and (self.exact_paths is not None or self.prefix != "")))
        )

    @cached_property
    def sees_daemon(self) -> bool:
        """Whether the daemon's own states may match: only where the rule itself starts with ``$``."""
        starts = [self.prefix, *(self.exact_paths or ())]
        return any(start.startswith("$") for start in starts)


EVERYTHING = Rule()


# -- reading a rule from a request


def read_rule(params: dict[str, Any]) -> Rule:
    """The rule in the parameters of a fetch or get, in any spelling but the 2012 one (see ``read_matcher``)."""
    path = params.get("path")
    if path is None:
        path = {}
    if not isinstance(path, dict):
        raise WrongType("path")
    fold = bool(path.get("caseInsensitive", params.get("caseInsensitive", False)))
    path_tests = tuple(_read_path_test(op, operand, fold) for op, operand in path.items() if op != "caseInsensitive")
    value_tests = _read_value(params.get("value")) or _read_value_fields(params.get("valueField"))
    sort, implied = _read_sort(params.get("sort"))
    _check_size(path_tests, value_tests)
    return Rule(path=path_tests, case_insensitive=fold, value=(*value_tests, *implied), sort=sort)


def _read_path_test(op: str, operand: Any, fold: bool) -> tuple[str, str | tuple[str, ...]]:
    operator = PATH_TESTS.get(op)
    if operator is None:
        raise InvalidRule(op, f"there is no path rule {op!r}; there are {', '.join(PATH_TESTS)}")
    if operator.takes_list:
        if not isinstance(operand, list) or not all(isinstance(one, str) for one in operand):
            raise InvalidRule(op, f"{op} takes a list of strings")
        return op, tuple(one.lower() if fold else one for one in operand)
    if not isinstance(operand, str):
        raise InvalidRule(op, f"{op} takes a string")
    return op, operand.lower() if fold else operand


_ValueTests = tuple[tuple[tuple[str | int, ...], str, str], ...]


def _read_value(value: Any) -> _ValueTests:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise WrongType("value")
    tests = []
    for name, member in value.items():
        if isinstance(member, dict) and "operator" in member:
            if member.get("value") is None:
                raise InvalidRule(name, "the operand must not be null")
            tests.append(_read_value_test(parse_field(name), member["operator"], member["value"]))
        else:
            tests.append(_read_value_test((), name, member))
    return tuple(tests)


def _read_value_fields(fields: Any) -> _ValueTests:
    if fields is None:
        return ()
    if not isinstance(fields, dict) or not all(isinstance(tests, dict) for tests in fields.values()):
        raise WrongType("valueField")
    return tuple(
        _read_value_test(parse_field(field), op, operand)
        for field, tests in fields.items()
        for op, operand in tests.items()
    )


def _read_value_test(steps: tuple[str | int, ...], op: Any, operand: Any) -> tuple[tuple[str | int, ...], str, str]:
    operator = VALUE_TESTS.get(op) if isinstance(op, str) else None
    if operator is None:
        raise InvalidRule(op, f"there is no value rule {op!r}; there are {', '.join(VALUE_TESTS)}")
    if not operator.accepts(operand):
        raise InvalidRule(op, f"{op} does not take {operand!r}")
    operator.test(operand)
    return steps, op, json.dumps(operand, sort_keys=True)


def _read_sort(sort: Any) -> tuple[Sort | None, _ValueTests]:
    """The sort and the type test that sorting by a value implies."""
    if sort is None:
        return None, ()
    if not isinstance(sort, dict):
        raise WrongType("sort")
    first, last = sort.get("from", 1), sort.get("to", 10)
    for name, position in (("from", first), ("to", last)):
        if not isinstance(position, int) or isinstance(position, bool) or position < 1:
            raise InvalidRule(name, f"sort: {name!r} is a position counted from 1")
    descending = bool(sort.get("descending", False))
    by, type_name = _read_sort_field(sort)
    if by is None:
        return Sort(descending=descending, first=first, last=last), ()
    if type_name not in ("number", "string", "boolean"):
        raise InvalidRule("sort", "values are sorted as number, string or boolean")
    ordered = Sort(by=by, type=type_name, descending=descending, first=first, last=last)
    return ordered, (_read_value_test(by, "isType", type_name),)


def _read_sort_field(sort: dict[str, Any]) -> tuple[tuple[str | int, ...] | None, Any]:
    if sort.get("byPath"):
        return None, None
    if sort.get("byValue"):
        return (), sort["byValue"]
    fields = sort.get("byValueField")
    if not fields:
        return None, None
    if not isinstance(fields, dict) or len(fields) != 1:
        raise InvalidRule("byValueField", "byValueField takes one field and its type")
    ((field, type_name),) = fields.items()
    return parse_field(field), type_name


def read_matcher(matcher: Any) -> Rule:
    """The rule of a 2012 ``matcher``: a Lua pattern, or lists ``match`` and ``unmatch`` of them."""
    if isinstance(matcher, str):
        matcher = {"match": [matcher]}
    if not isinstance(matcher, dict):
        raise WrongType("matcher")
    match, unmatch = _read_patterns(matcher, "match"), _read_patterns(matcher, "unmatch")
    rule = Rule(lua_match=match, lua_unmatch=unmatch)
    _check_size(match, unmatch)
    try:
        _ = rule.matches_path
    except ValueError as problem:
        raise InvalidRule(str(problem)) from problem
    return rule


def _read_patterns(matcher: dict[str, Any], name: str) -> tuple[str, ...]:
    patterns = matcher.get(name)
    if patterns is None:
        return ()
    if isinstance(patterns, str):
        patterns = [patterns]
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise WrongType(name)
    return tuple(patterns)


def _check_size(*tests: tuple[Any, ...]) -> None:
    if sum(len(some) for some in tests) > RULES_MAX:
        raise InvalidRule("path", f"a fetch takes at most {RULES_MAX} rules")
