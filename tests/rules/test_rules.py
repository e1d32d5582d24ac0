"""Fetch rules: each operator as a table, every spelling, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jetbus.errors import InvalidRule, WrongType
from jetbus.rules import (
    ALTERNATIVES_MAX,
    EVERYTHING,
    PATH_TESTS,
    RULES_MAX,
    TYPES,
    VALUE_TESTS,
    Rule,
    Sort,
    read_matcher,
    read_rule,
)
from jetbus.rules.operators import ABSENT, FEW, find_field, format_field, parse_field
from jetbus.rules.work import meter

# Paths.

PATH_RULES: dict[str, tuple[Any, list[str], list[str]]] = {
    "equals": ("a/b", ["a/b"], ["a", "a/b/", "a/b/c", "A/b", ""]),
    "equalsNot": ("a/b", ["a", "a/bc", "A/b", ""], ["a/b"]),
    "contains": ("b/", ["b/", "ab/c", "x/b/y"], ["b", "B/", "/b", ""]),
    "containsNot": ("b/", ["b", "B/", ""], ["b/", "ab/c"]),
    "containsAllOf": (["a", "b"], ["ab", "b/a"], ["a", "b", "AB", ""]),
    "containsOneOf": (["a", "b"], ["a", "xb", "ab"], ["x", "A", ""]),
    "startsWith": ("a/", ["a/", "a/b"], ["a", "ba/", "A/b", ""]),
    "startsNotWith": ("a/", ["a", "ba/", ""], ["a/", "a/b"]),
    "endsWith": ("/b", ["/b", "a/b"], ["b", "/bc", "a/B", "", "m"]),
    "endsNotWith": ("/b", ["b", "/bc", ""], ["/b", "a/b"]),
    "equalsOneOf": (["a", "b/c"], ["a", "b/c"], ["b", "c", "A", ""]),
    "equalsNotOneOf": (["a", "b/c"], ["b", "A", ""], ["a", "b/c"]),
}


def _cases(column: int) -> list[Any]:
    """Operator, operand and path of the table: column 1 are those that match, column 2 the others."""
    return [
        pytest.param(op, row[0], path, id=f"{op} {json.dumps(row[0])} of {path!r}")
        for op, row in PATH_RULES.items()
        for path in row[column]
    ]


def test_all_path_operators_have_a_row() -> None:
    """The table above knows all path operators, the twelve of Jet among them."""
    assert PATH_RULES.keys() == PATH_TESTS.keys()
    assert len(PATH_RULES) >= 12


@pytest.mark.parametrize(("op", "operand", "path"), _cases(1))
def test_path_matches(op: str, operand: Any, path: str) -> None:
    """A path operator holds for these paths."""
    assert read_rule({"path": {op: operand}}).matches_path(path)


@pytest.mark.parametrize(("op", "operand", "path"), _cases(2))
def test_path_does_not_match(op: str, operand: Any, path: str) -> None:
    """A path operator does not hold for these paths."""
    assert not read_rule({"path": {op: operand}}).matches_path(path)


def test_patterns_mean_nothing() -> None:
    """Operands are plain text: no wildcard, no pattern."""
    assert not read_rule({"path": {"contains": "a.*"}}).matches_path("abc")
    assert read_rule({"path": {"contains": "a.*"}}).matches_path("xa.*")
    assert not read_rule({"path": {"startsWith": "%a"}}).matches_path("b")


@pytest.mark.parametrize("op", ["startsWith", "contains", "endsWith"])
def test_empty_operand_matches_all(op: str) -> None:
    """Every path starts with, contains and ends with the empty text."""
    rule = read_rule({"path": {op: ""}})
    assert rule.matches_path("a/b")
    assert rule.matches_path("")


@pytest.mark.parametrize(
    ("op", "holds"),
    [("containsAllOf", True), ("containsOneOf", False), ("equalsOneOf", False), ("equalsNotOneOf", True)],
)
def test_empty_list(op: str, holds: bool) -> None:
    """Of no alternatives all hold and none does."""
    assert read_rule({"path": {op: []}}).matches_path("a") is holds


def test_all_path_rules_must_hold() -> None:
    """Several path rules narrow each other."""
    rule = read_rule({"path": {"startsWith": "a/", "endsWith": "/z", "containsNot": "q"}})
    assert rule.matches_path("a/b/z")
    assert not rule.matches_path("a/b/y")
    assert not rule.matches_path("a/q/z")
    assert not rule.matches_path("b/z")


EVERYTHING_SPELT = {
    "no params": {},
    "no path rules": {"path": {}},
    "path null": {"path": None},
    "value null": {"value": None},
    "no value rules": {"value": {}},
    "no field rules": {"valueField": {}},
    "sort null": {"sort": None},
}


@pytest.mark.parametrize("params", EVERYTHING_SPELT.values(), ids=EVERYTHING_SPELT)
def test_no_rule_is_everything(params: dict[str, Any]) -> None:
    """A fetch that asks for nothing in particular is about everything."""
    assert read_rule(params) == EVERYTHING
    assert EVERYTHING.matches_path("any")
    assert EVERYTHING.matches_value is None


# Case.

FOLDING: dict[str, tuple[Any, list[str], list[str]]] = {
    "equals": ("A/b", ["a/B", "A/B", "a/b"], ["a/bc"]),
    "equalsNot": ("A/b", ["a/bc"], ["a/B", "a/b"]),
    "contains": ("PUMP", ["x/pump/y", "Pump"], ["pum"]),
    "containsNot": ("PUMP", ["pum"], ["x/pump/y"]),
    "containsAllOf": (["A", "b"], ["Ba"], ["a"]),
    "containsOneOf": (["A", "b"], ["B", "a"], ["c"]),
    "startsWith": ("Pu", ["pump", "PUMP"], ["xpu"]),
    "startsNotWith": ("Pu", ["xpu"], ["pump", "PUMP"]),
    "endsWith": ("Mp", ["pump", "PUMP"], ["mpx"]),
    "endsNotWith": ("Mp", ["mpx"], ["pump", "PUMP"]),
    "equalsOneOf": (["A", "b"], ["a", "B"], ["ab"]),
    "equalsNotOneOf": (["A", "b"], ["ab"], ["a", "B"]),
}
PLACES = {
    "inside path": lambda rules: {"path": {**rules, "caseInsensitive": True}},
    "first inside path": lambda rules: {"path": {"caseInsensitive": True, **rules}},
    "beside path": lambda rules: {"path": rules, "caseInsensitive": True},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("op", PATH_TESTS)
def test_case_insensitive(op: str, place: Any) -> None:
    """Case does not matter if the fetch says so, inside ``path`` or beside it, for every operator."""
    operand, matching, others = FOLDING[op]
    rule = read_rule(place({op: operand}))
    assert [path for path in matching if not rule.matches_path(path)] == []
    assert [path for path in others if rule.matches_path(path)] == []


def test_case_matters_otherwise() -> None:
    """Case matters unless the fetch says otherwise, and the rule inside ``path`` is the stronger one."""
    assert not read_rule({"path": {"equals": "a", "caseInsensitive": False}}).matches_path("A")
    assert not read_rule({"path": {"equals": "a", "caseInsensitive": False}, "caseInsensitive": True}).matches_path("A")


def test_case_of_other_alphabets() -> None:
    """Lower case is that of Unicode, not only of ASCII."""
    assert read_rule({"path": {"startsWith": "ÄÖ", "caseInsensitive": True}}).matches_path("äö/ü")


# Values.

BIG = 2**63 + 1

VALUE_RULES: dict[str, list[tuple[Any, list[Any], list[Any]]]] = {
    "lessThan": [
        (10, [9, 9.99, -1, -1e300, 0], [10, 10.0, 11, "9", "", None, True, False, [], [9], {}]),
        (0.5, [0, 0.25], [0.5, 1]),
        (BIG, [BIG - 1], [BIG, BIG + 1]),
        ("b", ["a", "", "aZ", "B"], ["b", "c", 1, None, True, ["a"]]),
    ],
    "greaterThan": [
        (10, [11, 10.01, 1e300], [10, 10.0, 9, "11", None, True, [11], {}]),
        (-1, [0, -0.5], [False, True, -1, -2]),
        (BIG, [BIG + 1], [BIG, BIG - 1]),
        ("b", ["c", "ba"], ["b", "a", "", 1, None]),
    ],
    "atMost": [
        (10, [10, 10.0, 9, -1e300], [11, 10.01, "9", "", None, True, False, [], [9], {}]),
        (BIG, [BIG - 1, BIG], [BIG + 1]),
        ("b", ["a", "", "b", "B"], ["ba", "c", 1, None, True, ["a"]]),
    ],
    "atLeast": [
        (10, [11, 10, 10.0, 1e300], [9, 9.99, "11", None, True, [11], {}]),
        (-1, [0, -1], [False, True, -2]),
        (BIG, [BIG, BIG + 1], [BIG - 1]),
        ("b", ["c", "b"], ["a", "", 1, None]),
    ],
    "equals": [
        (1, [1, 1.0], [True, "1", 2, None, [1], {}]),
        (1.5, [1.5], [1, "1.5"]),
        (0, [0, 0.0, -0.0], [False, "", None, []]),
        (True, [True], [1, 1.0, "true", False, None]),
        (False, [False], [0, "", None, []]),
        (None, [None], [0, False, "", [], {}]),
        ("a", ["a"], ["A", "", ["a"], None]),
        (BIG, [BIG], [BIG + 1, float(BIG)]),
        ([1], [], [[1], 1]),
        ({"a": 1}, [], [{"a": 1}]),
    ],
    "equalsNot": [
        (1, [True, "1", 2, None, [1], {}], [1, 1.0]),
        (True, [1, "true", False], [True]),
        (None, [0, False], [None]),
        ([1], [[1], 1, None], []),
        ({}, [{}, None], []),
    ],
    "isType": [
        ("number", [0, 1, -1.5, 1e300, BIG], [True, False, "1", None, [], {}]),
        ("string", ["", "a"], [1, None, True, [], {}]),
        ("boolean", [True, False], [0, 1, "true", None]),
        ("object", [{}, [], None, {"a": 1}], [0, "", True]),
    ],
    "hasOneOf": [
        ([1, "a"], [[1], ["a", 2], [2, 1.0]], [[], [True], ["1"], 1, "a", {"a": 1}, None]),
        ([True], [[True]], [[1]]),
        ([], [], [[], [1]]),
        ([[1]], [], [[[1]]]),
    ],
    "hasAllOf": [
        ([1, "a"], [["a", 1], [1, 2, "a"]], [[1], ["a"], [], [True, "a"], "a", None]),
        ([], [[], [1]], [None, {}, "a", 1]),
    ],
}


def _value_cases(column: int) -> list[Any]:
    return [
        pytest.param(op, row[0], value, id=f"{op} {json.dumps(row[0])} of {json.dumps(value)}")
        for op, rows in VALUE_RULES.items()
        for row in rows
        for value in row[column]
    ]


def _holds(params: dict[str, Any], value: Any) -> bool:
    test = read_rule(params).matches_value
    assert test is not None
    return test(value)


def test_all_value_operators_have_a_row() -> None:
    """The table above knows all value operators."""
    assert VALUE_RULES.keys() == VALUE_TESTS.keys()


@pytest.mark.parametrize(("op", "operand", "value"), _value_cases(1))
def test_value_matches(op: str, operand: Any, value: Any) -> None:
    """A value operator holds for these values, as a field, in node-jet 3's form and in the classic one."""
    assert _holds({"value": {op: operand}}, value)
    assert _holds({"valueField": {"f": {op: operand}}}, {"f": value})
    if operand is not None:
        assert _holds({"value": {"": {"operator": op, "value": operand}}}, value)


@pytest.mark.parametrize(("op", "operand", "value"), _value_cases(2))
def test_value_does_not_match(op: str, operand: Any, value: Any) -> None:
    """A value operator does not hold for these values: true is no 1, and types are not converted."""
    assert not _holds({"value": {op: operand}}, value)
    assert not _holds({"valueField": {"f": {op: operand}}}, {"f": value})
    if operand is not None:
        assert not _holds({"value": {"": {"operator": op, "value": operand}}}, value)


def test_all_value_rules_must_hold() -> None:
    """Several value operators and several fields narrow each other."""
    between = {"value": {"greaterThan": 1, "lessThan": 5}}
    assert [value for value in range(7) if _holds(between, value)] == [2, 3, 4]
    fields = {"valueField": {"a": {"equals": 1}, "b.c": {"greaterThan": 1, "lessThan": 5}}}
    assert _holds(fields, {"a": 1, "b": {"c": 2}})
    assert not _holds(fields, {"a": 2, "b": {"c": 2}})
    assert not _holds(fields, {"a": 1, "b": {"c": 5}})


def test_value_is_stronger_than_fields() -> None:
    """If a fetch gives rules for the value and for fields, those for the value count."""
    both = {"value": {"isType": "object"}, "valueField": {"a": {"equals": 1}}}
    assert _holds(both, {"a": 2})


# Fields.

FIELDS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "the value itself": ("", ()),
    "a field": ("a", ("a",)),
    "nested fields": ("a.b.c", ("a", "b", "c")),
    "an index": ("a[1]", ("a", 1)),
    "an index at the start": ("[0]", (0,)),
    "a field of an item": ("a[1].c", ("a", 1, "c")),
    "indexes in a row": ("a[1][22]", ("a", 1, 22)),
    "items of items": ("[0][1].x", (0, 1, "x")),
    "digits are a name": ("a.0", ("a", "0")),
    "spaces are a name": ("a b. c", ("a b", " c")),
    "any alphabet": ("größe.温度", ("größe", "温度")),
    "what would be code": ("a-b()+'x'", ("a-b()+'x'",)),
    "python's own names": ("__class__.__mro__", ("__class__", "__mro__")),
    "the longest index": ("[999999999]", (999999999,)),
}


@pytest.mark.parametrize(("text", "steps"), FIELDS.values(), ids=FIELDS)
def test_field_paths(text: str, steps: tuple[str | int, ...]) -> None:
    """A field path is names with dots between them and indexes in brackets, counted from 0."""
    assert parse_field(text) == steps
    assert format_field(steps) == text


NO_FIELDS = {
    "leading dot": ".a",
    "trailing dot": "a.",
    "doubled dot": "a..b",
    "only a dot": ".",
    "open bracket": "a[",
    "unclosed index": "a[1",
    "empty index": "a[]",
    "index is no number": "a[b]",
    "negative index": "a[-1]",
    "closing bracket": "a]",
    "name behind an index": "a[1]b",
    "dot before an index": "a.[1]",
    "overlong index": "[1234567890]",
}


@pytest.mark.parametrize("text", NO_FIELDS.values(), ids=NO_FIELDS)
def test_no_field_paths(text: str) -> None:
    """Invalid field paths are refused everywhere."""
    with pytest.raises(InvalidRule, match="field path"):
        parse_field(text)
    with pytest.raises(InvalidRule):
        read_rule({"valueField": {text: {"equals": 1}}})
    with pytest.raises(InvalidRule):
        read_rule({"sort": {"byValueField": {text: "number"}}})


FIELD_VALUES: dict[str, tuple[Any, str, Any]] = {
    "whole value": (5, "", 5),
    "a field": ({"a": 1}, "a", 1),
    "nested": ({"a": {"b": [1, 2]}}, "a.b[1]", 2),
    "false is there": ({"a": False}, "a", False),
    "null is there": ({"a": None}, "a", None),
    "missing field": ({"a": 1}, "b", ABSENT),
    "missing nested field": ({"a": {}}, "a.b", ABSENT),
    "field of a missing field": ({}, "a.b.c", ABSENT),
    "field of a number": (5, "a", ABSENT),
    "field of null": ({"a": None}, "a.b", ABSENT),
    "field of a list": ([1], "a", ABSENT),
    "length is no field": ([1], "length", ABSENT),
    "index of an object": ({"0": 1}, "[0]", ABSENT),
    "index of a text": ("abc", "[0]", ABSENT),
    "index beyond the end": ([1], "[1]", ABSENT),
    "digits as a name": ({"0": 1}, "0", 1),
    "attributes are no fields": ({}, "__class__", ABSENT),
}


@pytest.mark.parametrize(("value", "field", "found"), FIELD_VALUES.values(), ids=FIELD_VALUES)
def test_field_of_a_value(value: Any, field: str, found: Any) -> None:
    """A field is found in objects by name and in lists by index, and nowhere else."""
    assert find_field(value, parse_field(field)) is found


@pytest.mark.parametrize("op", ["equalsNot", "isType", "equals"])
def test_missing_field_matches_nothing(op: str) -> None:
    """No rule holds for a field that is not there, not even a negation."""
    operand = {"equalsNot": 1, "isType": "object", "equals": None}[op]
    assert not _holds({"valueField": {"a": {op: operand}}}, {"b": 1})
    assert not _holds({"valueField": {"a": {op: operand}}}, 7)


# Node-jet 3.


def test_node_jet_3_fields() -> None:
    """Node-jet 3 names a field, the operator and the operand; no field is the whole value."""
    rule = {"value": {"a.b": {"operator": "lessThan", "value": 9}, "c": {"operator": "equals", "value": "x"}}}
    assert _holds(rule, {"a": {"b": 8}, "c": "x"})
    assert not _holds(rule, {"a": {"b": 9}, "c": "x"})
    assert not _holds(rule, {"a": {"b": 8}})


def test_spellings_give_equal_rules() -> None:
    """The same rule is equal in every spelling, so that its fetches can share their work."""
    classic = read_rule({"value": {"lessThan": 9}})
    assert classic == read_rule({"value": {"": {"operator": "lessThan", "value": 9}}})
    assert classic == read_rule({"valueField": {"": {"lessThan": 9}}})
    assert hash(classic) == hash(read_rule({"value": {"lessThan": 9}}))


@pytest.mark.parametrize("one", [True, "1", 1.5, None], ids=repr)
def test_operands_keep_their_type(one: Any) -> None:
    """Rules whose operands differ only in their type are different rules."""
    assert read_rule({"value": {"equals": 1}}) != read_rule({"value": {"equals": one}})


# Sorting.

SORTS: dict[str, tuple[dict[str, Any], Sort]] = {
    "nothing said": ({}, Sort(by=None, descending=False, first=1, last=10)),
    "by path": ({"byPath": True}, Sort()),
    "descending": ({"descending": True}, Sort(descending=True)),
    "window": ({"from": 3, "to": 7}, Sort(first=3, last=7)),
    "empty window": ({"from": 5, "to": 2}, Sort(first=5, last=2)),
    "by number": ({"byValue": "number"}, Sort(by=(), type="number")),
    "by string": ({"byValue": "string"}, Sort(by=(), type="string")),
    "by boolean": ({"byValue": "boolean"}, Sort(by=(), type="boolean")),
    "by field": ({"byValueField": {"a.b[0]": "number"}}, Sort(by=("a", "b", 0), type="number")),
    "path is stronger than value": ({"byPath": True, "byValue": "number"}, Sort()),
    "value is stronger than field": (
        {"byValue": "number", "byValueField": {"a": "string"}},
        Sort(by=(), type="number"),
    ),
    "by path false": ({"byPath": False}, Sort()),
    "client's own option": ({"asArray": True}, Sort()),
}


@pytest.mark.parametrize(("given_sort", "expected"), SORTS.values(), ids=SORTS)
def test_sort_is_read(given_sort: dict[str, Any], expected: Sort) -> None:
    """A sort has an order, a direction and a window, each with a default."""
    assert read_rule({"sort": given_sort}).sort == expected


@pytest.mark.parametrize("type_name", ["number", "string", "boolean"])
def test_sort_by_value_takes_only_its_type(type_name: str) -> None:
    """Sorting by a value or field implies that it is of the named type."""
    samples = {"number": 1, "string": "1", "boolean": True}
    for name, value in samples.items():
        assert _holds({"sort": {"byValue": type_name}}, value) is (name == type_name)
        assert _holds({"sort": {"byValueField": {"a": type_name}}}, {"a": value}) is (name == type_name)
    assert not _holds({"sort": {"byValueField": {"a": type_name}}}, {})


def test_sort_by_path_takes_all() -> None:
    """Sorting by path says nothing about values, so methods take part."""
    assert read_rule({"sort": {}}).matches_value is None


# What is refused.

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "path is a string": ({"path": "a"}, WrongType, "path"),
    "path is a list": ({"path": ["a"]}, WrongType, "path"),
    "path is false": ({"path": False}, WrongType, "path"),
    "unknown path rule": ({"path": {"startWith": "a"}}, InvalidRule, "startWith"),
    "path rule of other case": ({"path": {"startswith": "a"}}, InvalidRule, "startswith"),
    "operand is a number": ({"path": {"startsWith": 1}}, InvalidRule, "startsWith"),
    "operand is null": ({"path": {"equals": None}}, InvalidRule, "equals"),
    "operand is a list": ({"path": {"contains": ["a"]}}, InvalidRule, "contains"),
    "list operand is a string": ({"path": {"containsAllOf": "a"}}, InvalidRule, "containsAllOf"),
    "list operand has a number": ({"path": {"equalsOneOf": ["a", 1]}}, InvalidRule, "equalsOneOf"),
    "list operand is an object": ({"path": {"equalsNotOneOf": {}}}, InvalidRule, "equalsNotOneOf"),
    "value is a number": ({"value": 5}, WrongType, "value"),
    "value is a list": ({"value": []}, WrongType, "value"),
    "unknown value rule": ({"value": {"between": 5}}, InvalidRule, "between"),
    "path rule on a value": ({"value": {"startsWith": "a"}}, InvalidRule, "startsWith"),
    "lessThan true": ({"value": {"lessThan": True}}, InvalidRule, "lessThan"),
    "lessThan null": ({"value": {"lessThan": None}}, InvalidRule, "lessThan"),
    "greaterThan list": ({"value": {"greaterThan": [1]}}, InvalidRule, "greaterThan"),
    "isType unknown": ({"value": {"isType": "integer"}}, InvalidRule, "isType"),
    "isType number": ({"value": {"isType": 1}}, InvalidRule, "isType"),
    "hasOneOf text": ({"value": {"hasOneOf": "abc"}}, InvalidRule, "hasOneOf"),
    "hasAllOf object": ({"value": {"hasAllOf": {}}}, InvalidRule, "hasAllOf"),
    "fields are a list": ({"valueField": ["a"]}, WrongType, "valueField"),
    "field without rules": ({"valueField": {"a": 1}}, WrongType, "valueField"),
    "unknown field rule": ({"valueField": {"a": {"is": 1}}}, InvalidRule, "is"),
    "node-jet 3 operator unknown": ({"value": {"": {"operator": "is", "value": 1}}}, InvalidRule, "is"),
    "node-jet 3 operator number": ({"value": {"": {"operator": 1, "value": 1}}}, InvalidRule, "1"),
    "node-jet 3 operand null": ({"value": {"a": {"operator": "equals", "value": None}}}, InvalidRule, "null"),
    "node-jet 3 operand missing": ({"value": {"a": {"operator": "equals"}}}, InvalidRule, "null"),
    "node-jet 3 operand wrong": ({"value": {"": {"operator": "lessThan", "value": {}}}}, InvalidRule, "lessThan"),
    "sort is a list": ({"sort": []}, WrongType, "sort"),
    "sort is true": ({"sort": True}, WrongType, "sort"),
    "from 0": ({"sort": {"from": 0}}, InvalidRule, "from"),
    "from negative": ({"sort": {"from": -1}}, InvalidRule, "from"),
    "from fraction": ({"sort": {"from": 1.5}}, InvalidRule, "from"),
    "from true": ({"sort": {"from": True}}, InvalidRule, "from"),
    "from text": ({"sort": {"from": "1"}}, InvalidRule, "from"),
    "to 0": ({"sort": {"to": 0}}, InvalidRule, "to"),
    "to null": ({"sort": {"to": None}}, InvalidRule, "to"),
    "sort by true": ({"sort": {"byValue": True}}, InvalidRule, "number, string or boolean"),
    "sort by object": ({"sort": {"byValue": "object"}}, InvalidRule, "number, string or boolean"),
    "sort by field of no type": ({"sort": {"byValueField": {"a": True}}}, InvalidRule, "number, string or boolean"),
    "sort by a list as type": ({"sort": {"byValue": ["number"]}}, InvalidRule, "number, string or boolean"),
    "sort by two fields": (
        {"sort": {"byValueField": {"a": "number", "b": "number"}}},
        InvalidRule,
        "one field",
    ),
    "sort by field text": ({"sort": {"byValueField": "a"}}, InvalidRule, "one field"),
    "too many path rules": (
        {"valueField": {f"f{number}": {"equals": number} for number in range(RULES_MAX + 1)}},
        InvalidRule,
        str(RULES_MAX),
    ),
}


@pytest.mark.parametrize(("params", "error", "received"), REFUSED.values(), ids=REFUSED)
def test_refused_rules(params: dict[str, Any], error: type[Exception], received: str) -> None:
    """A rule that cannot be is refused, and the error names what is wrong."""
    with pytest.raises(error) as refused:
        read_rule(params)
    assert received in f"{refused.value} {vars(refused.value)}"


@pytest.mark.parametrize("op", ["containsAllOf", "containsOneOf", "equalsOneOf", "equalsNotOneOf"])
def test_alternatives_are_limited(op: str) -> None:
    """An operator takes only so many alternatives."""
    read_rule({"path": {op: [str(number) for number in range(ALTERNATIVES_MAX)]}})
    with pytest.raises(InvalidRule):
        read_rule({"path": {op: [str(number) for number in range(ALTERNATIVES_MAX + 1)]}})


def test_as_many_rules_as_allowed() -> None:
    """A fetch may have as many rules as the limit says."""
    rule = read_rule({"valueField": {f"f{number}": {"equals": number} for number in range(RULES_MAX)}})
    assert len(rule.value) == RULES_MAX


# Long lists.

_parts = st.lists(st.text("ab/", min_size=1, max_size=4), min_size=0, max_size=60)


@settings(deadline=None)
@given(_parts, st.text("abc/", max_size=10), st.integers(0, 1))
def test_long_lists_against_plain_python(parts: list[str], path: str, empty: int) -> None:
    """Many texts are found like few: by any text that is in the path."""
    parts = [*parts, *[f"c{'c' * number}" for number in range(2, 2 + FEW)], *[""] * empty]
    assert read_rule({"path": {"containsOneOf": parts}}).matches_path(path) is any(part in path for part in parts)
    assert read_rule({"path": {"containsAllOf": parts}}).matches_path(path) is all(part in path for part in parts)


_members = st.lists(
    st.sampled_from([0, 1, 1.0, 2, True, False, None, "", "a", "1", BIG, float(BIG), [1], {"a": 1}]), max_size=6
)


@settings(deadline=None)
@given(_members, _members)
def test_members_against_plain_python(wanted: list[Any], value: list[Any]) -> None:
    """Members are equal as JSON primitives are: true is not 1, 1.0 is, lists and objects equal nothing."""

    def is_held(member: Any) -> bool:
        return any(_holds({"value": {"equals": member}}, other) for other in value)

    assert _holds({"value": {"hasAllOf": wanted}}, value) is all(map(is_held, wanted))
    assert _holds({"value": {"hasOneOf": wanted}}, value) is any(map(is_held, wanted))


def test_long_lists_take_linear_work() -> None:
    """Lists of ten thousand are compared in as many steps, and as many texts looked for in a path by its length."""
    many = list(range(ALTERNATIVES_MAX))
    texts = [f"{number:05}" for number in many]
    for params, holds in (
        ({"value": {"hasAllOf": many}}, True),
        ({"value": {"hasOneOf": [-number for number in many[1:]]}}, False),
    ):
        before = meter.units
        assert _holds(params, many[::-1]) is holds
        assert 0 < meter.units - before <= 2 * len(many)
    matches_path = read_rule({"path": {"containsOneOf": texts}}).matches_path
    before = meter.units
    assert not any(matches_path(f"plant/line/{number:03}/x") for number in range(1000))
    assert 0 < meter.units - before <= 1000 * 64


# Matchers of 2012.

MATCHERS: dict[str, tuple[Any, list[str], list[str]]] = {
    "a pattern": ("^a%d+/", ["a1/b", "a22/"], ["a/b", "ba1/", ""]),
    "a pattern anywhere": ("b", ["abc", "b"], ["ac"]),
    "no pattern": ("", ["", "a"], []),
    "one of a list": ({"match": ["^a", "^b"]}, ["a", "bc"], ["c"]),
    "match as text": ({"match": "^a"}, ["ab"], ["ba"]),
    "but not": ({"match": ["^a"], "unmatch": ["z$", "y$"]}, ["a", "azb"], ["az", "ay", "b"]),
    "only but not": ({"unmatch": ["z$"]}, ["a", "zb"], ["z", "az"]),
    "dots are any character": ("a.c", ["abc", "a/c"], ["ac"]),
    "case matters": ("A", ["A"], ["a"]),
}


@pytest.mark.parametrize(("matcher", "matching", "others"), MATCHERS.values(), ids=MATCHERS)
def test_matchers(matcher: Any, matching: list[str], others: list[str]) -> None:
    """A matcher is a Lua pattern, or lists of those of which one must and those of which none may match."""
    rule = read_matcher(matcher)
    assert [path for path in matching if not rule.matches_path(path)] == []
    assert [path for path in others if rule.matches_path(path)] == []


REFUSED_MATCHERS: dict[str, tuple[Any, type[Exception]]] = {
    "number": (1, WrongType),
    "null": (None, WrongType),
    "list": (["a"], WrongType),
    "match is a number": ({"match": 1}, WrongType),
    "match has a number": ({"match": ["a", 1]}, WrongType),
    "unmatch is an object": ({"unmatch": {}}, WrongType),
    "malformed pattern": ("[a", InvalidRule),
    "no pattern": ({}, InvalidRule),
    "empty lists": ({"match": [], "unmatch": None}, InvalidRule),
    "misspelt": ({"mach": ["a"]}, InvalidRule),
    "misspelt beside a right one": ({"match": ["a"], "unmach": ["b"]}, InvalidRule),
    "malformed pattern in a list": ({"match": ["a"], "unmatch": ["%"]}, InvalidRule),
    "too many patterns": ({"match": ["a"] * RULES_MAX, "unmatch": ["b"]}, InvalidRule),
}


@pytest.mark.parametrize(("matcher", "error"), REFUSED_MATCHERS.values(), ids=REFUSED_MATCHERS)
def test_refused_matchers(matcher: Any, error: type[Exception]) -> None:
    """A matcher that cannot be is refused when the fetch is made, not when a path comes."""
    with pytest.raises(error):
        read_matcher(matcher)


# Finding rules by path.

INDEX: dict[str, tuple[dict[str, Any], tuple[str, ...] | None, str, bool]] = {
    "everything": ({}, None, "", True),
    "equals": ({"equals": "a"}, ("a",), "", True),
    "equalsOneOf": ({"equalsOneOf": ["a", "b"]}, ("a", "b"), "", True),
    "equalsOneOf twice the same": ({"equalsOneOf": ["a", "b", "a"]}, ("a", "b"), "", True),
    "equalsOneOf nothing": ({"equalsOneOf": []}, (), "", True),
    "startsWith": ({"startsWith": "a/"}, None, "a/", True),
    "startsWith nothing": ({"startsWith": ""}, None, "", False),
    "contains": ({"contains": "a"}, None, "", False),
    "equals and more": ({"equals": "a", "contains": "b"}, ("a",), "", False),
    "startsWith and more": ({"startsWith": "a", "contains": "b"}, None, "a", False),
    "equals and startsWith": ({"equals": "ab", "startsWith": "a"}, ("ab",), "a", False),
    "equals of any case": ({"equals": "a", "caseInsensitive": True}, None, "", False),
    "startsWith of any case": ({"startsWith": "a", "caseInsensitive": True}, None, "", False),
    "equalsNot": ({"equalsNot": "a"}, None, "", False),
    "startsNotWith": ({"startsNotWith": "a"}, None, "", False),
}


@pytest.mark.parametrize(("path", "exact", "prefix", "enough"), INDEX.values(), ids=INDEX)
def test_index_of_a_rule(path: dict[str, Any], exact: tuple[str, ...] | None, prefix: str, enough: bool) -> None:
    """A rule tells the paths or the prefix by which it can be found, and whether that is all it asks of a path."""
    rule = read_rule({"path": path})
    assert (rule.exact_paths, rule.prefix, rule.is_found_by_index) == (exact, prefix, enough)


def test_matchers_are_not_found_by_index() -> None:
    """A Lua pattern must be tried."""
    assert not read_matcher("a").is_found_by_index
    assert not read_matcher({"unmatch": ["a"]}).is_found_by_index


SEES: dict[str, tuple[dict[str, Any], bool]] = {
    "startsWith the node": ({"startsWith": "$jet/"}, True),
    "startsWith a dollar": ({"startsWith": "$"}, True),
    "equals a state": ({"equals": "$jet/version"}, True),
    "equalsOneOf with a state": ({"equalsOneOf": ["a", "$jet/version"]}, True),
    "everything": ({}, False),
    "startsWith nothing": ({"startsWith": ""}, False),
    "contains": ({"contains": "$jet"}, False),
    "endsWith": ({"endsWith": "version"}, False),
    "equalsNot": ({"equalsNot": "$jet/version"}, False),
    "startsWith something else": ({"startsWith": "a$"}, False),
    "equals something else": ({"equals": "a"}, False),
}


@pytest.mark.parametrize(("path", "sees"), SEES.values(), ids=SEES)
def test_who_sees_the_daemon(path: dict[str, Any], sees: bool) -> None:
    """Only a rule that itself starts with a dollar sees the daemon's own states."""
    assert read_rule({"path": path}).sees_daemon is sees


_short = st.text(alphabet="abAB$/é", max_size=4)
_rules = st.dictionaries(
    st.sampled_from(sorted(PATH_TESTS)), st.tuples(_short, st.lists(_short, max_size=3)), max_size=3
)


BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Where much else runs, the first texts alone take seconds."""


def _rule_of(drawn: dict[str, tuple[str, list[str]]], fold: bool) -> Rule:
    path: dict[str, Any] = {op: both[PATH_TESTS[op].takes_list] for op, both in drawn.items()}
    return read_rule({"path": {**path, "caseInsensitive": fold}})


@BUSY
@given(_rules, st.booleans(), _short)
@example({"startsWith": ("a", [])}, False, "ab")
@example({"equalsOneOf": ("", ["a", "b"])}, False, "b")
@example({"equals": ("A", [])}, True, "a")
def test_index_and_test_agree(drawn: dict[str, tuple[str, list[str]]], fold: bool, path: str) -> None:
    """A rule is found for every path it matches, and where the index is enough for no other."""
    rule = _rule_of(drawn, fold)
    found = path in rule.exact_paths if rule.exact_paths is not None else path.startswith(rule.prefix)
    if rule.matches_path(path):
        assert found
    if rule.is_found_by_index:
        assert found == rule.matches_path(path)


@BUSY
@given(_rules, st.booleans(), _short)
def test_rules_against_plain_python(drawn: dict[str, tuple[str, list[str]]], fold: bool, path: str) -> None:
    """A rule gives what plain Python says of the path, each operator by itself."""
    plain: dict[str, Any] = {
        "equals": lambda p, one, _: p == one,
        "contains": lambda p, one, _: p.find(one) >= 0,
        "startsWith": lambda p, one, _: p[: len(one)] == one,
        "endsWith": lambda p, one, _: len(p) >= len(one) and p[len(p) - len(one) :] == one,
        "equalsOneOf": lambda p, _, some: some.count(p) > 0,
        "containsAllOf": lambda p, _, some: {s for s in some if p.find(s) < 0} == set(),
        "containsOneOf": lambda p, _, some: {s for s in some if p.find(s) >= 0} != set(),
    }
    negated = {
        "equalsNot": "equals",
        "containsNot": "contains",
        "startsNotWith": "startsWith",
        "endsNotWith": "endsWith",
        "equalsNotOneOf": "equalsOneOf",
    }
    seen = path.lower() if fold else path
    expected = True
    for op, (one, some) in drawn.items():
        if fold:
            one, some = one.lower(), [s.lower() for s in some]
        holds = plain[negated.get(op, op)](seen, one, some)
        expected = expected and holds is not (op in negated)
    assert _rule_of(drawn, fold).matches_path(path) is expected


def test_types_have_names() -> None:
    """The types a rule can ask for are those of the protocol."""
    assert sorted(TYPES) == ["boolean", "number", "object", "string"]
