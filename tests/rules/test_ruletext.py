"""Rules as people write them: the grammar of the text, globs, keywords, and the way onto the wire and back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jetbus
from jetbus.errors import InvalidRule
from jetbus.rules import PATH_TESTS, VALUE_TESTS, Rule, parse_rule, read_matcher, read_rule, rule, write_rule
from jetbus.rules.globs import compile_glob
from jetbus.rules.work import meter

GRAMMAR: dict[str, Rule] = {
    "": Rule(),
    "  ": Rule(),
    "**": Rule(),
    "plant": Rule(path=(("equals", "plant"),)),
    " plant/pump/speed ": Rule(path=(("equals", "plant/pump/speed"),)),
    "plant/**": Rule(path=(("startsWith", "plant/"),)),
    "**/speed": Rule(path=(("endsWith", "/speed"),)),
    "**pump**": Rule(path=(("contains", "pump"),)),
    "*": Rule(glob="*"),
    "plant/*": Rule(path=(("startsWith", "plant/"),), glob="plant/*"),
    "a*b": Rule(path=(("startsWith", "a"), ("endsWith", "b")), glob="a*b"),
    "a**b": Rule(path=(("startsWith", "a"), ("endsWith", "b")), glob="a**b"),
    "**a**b**": Rule(path=(("containsAllOf", ("a", "b")),), glob="**a**b**"),
    "a/*/b/*/c": Rule(path=(("startsWith", "a/"), ("endsWith", "/c"), ("contains", "/b/")), glob="a/*/b/*/c"),
    '"a b*"': Rule(path=(("equals", "a b*"),)),
    '"\\u00fc"': Rule(path=(("equals", "ü"),)),
    "value": Rule(path=(("equals", "value"),)),
    "values/x": Rule(path=(("equals", "values/x"),)),
    "value>=7": Rule(value=(((), "atLeast", "7"),)),
    "value.a <= -1": Rule(value=((("a",), "atMost", "-1"),)),
    "value>7": Rule(value=(((), "greaterThan", "7"),)),
    "value < -1.5": Rule(value=(((), "lessThan", "-1.5"),)),
    'value="x y"': Rule(value=(((), "equals", '"x y"'),)),
    "value=null": Rule(value=(((), "equals", "null"),)),
    "value!=true": Rule(value=(((), "equalsNot", "true"),)),
    "value:number": Rule(value=(((), "isType", '"number"'),)),
    "value.a.b>1": Rule(value=((("a", "b"), "greaterThan", "1"),)),
    "value[0]=1": Rule(value=(((0,), "equals", "1"),)),
    "value.a[2].b=1": Rule(value=((("a", 2, "b"), "equals", "1"),)),
    "a value>1 value<5": Rule(path=(("equals", "a"),), value=(((), "greaterThan", "1"), ((), "lessThan", "5"))),
    "Plant/** nocase": Rule(path=(("startsWith", "plant/"),), case_insensitive=True),
    "P*/X nocase value>1": Rule(
        path=(("startsWith", "p"), ("endsWith", "/x")),
        case_insensitive=True,
        glob="p*/x",
        value=(((), "greaterThan", "1"),),
    ),
}


@pytest.mark.parametrize(("text", "made"), GRAMMAR.items(), ids=map(repr, GRAMMAR))
def test_grammar(text: str, made: Rule) -> None:
    """A text is read as the grammar says."""
    assert parse_rule(text) == made


WRONG = {
    "a b": "'b' in rule 'a b' is no test such as value>7",
    "value>7 a": "'a' in rule 'value>7 a' is no test",
    'value>7 "a"': "is no test",
    "a value>": "does not start with JSON",
    "a value>x": "quote text as",
    "a value=NaN": "does not start with JSON",
    "a value=-Infinity": "does not start with JSON",
    "a value:": "a type such as number belongs there",
    "a value:integer": "isType takes one of number, string, boolean, object",
    "a value>true": "greaterThan does not take True",
    "a value<[1]": "lessThan does not take",
    '"a': "does not start with JSON",
    "value=" + "[" * 100_000: "does not start with JSON",
}


@pytest.mark.parametrize(("text", "wrong"), WRONG.items(), ids=[repr(text[:20]) for text in WRONG])
def test_wrong_texts(text: str, wrong: str) -> None:
    """A wrong text is refused with the place and what would do."""
    with pytest.raises(InvalidRule, match=re.escape(wrong)):
        parse_rule(text)


# Globs.

PIECES = st.lists(st.sampled_from(["a", "b", "A", "/", ".", "*", "**", "ü"]), min_size=1, max_size=7).map("".join)
PATHS = st.text("abAÜü/.", max_size=8)


def _naive(glob: str, path: str) -> bool:
    """Two stars take anything, one anything but a slash; letter by letter."""
    if not glob:
        return not path
    if glob.startswith("*"):
        rest = glob.lstrip("*")
        crosses = glob.startswith("**")
        return any(_naive(rest, path[end:]) for end in range(len(path) + 1) if crosses or "/" not in path[:end])
    return path[:1] == glob[0] and _naive(glob[1:], path[1:])


@settings(deadline=None)
@given(glob=PIECES, path=PATHS)
@example(glob="ab**ba", path="aba")
@example(glob="**a**a**", path="a")
@example(glob="a.b", path="axb")
def test_globs(glob: str, path: str) -> None:
    """A glob matches what a naive reading of it matches."""
    assert parse_rule(glob).matches_path(path) is _naive(glob, path)


@settings(deadline=None)
@given(glob=PIECES, path=PATHS)
def test_globs_without_case(glob: str, path: str) -> None:
    """With nocase a glob matches whatever the case of letters."""
    assert parse_rule(f"{glob} nocase").matches_path(path) is _naive(glob.lower(), path.lower())


@settings(deadline=None)
@given(glob=PIECES, path=PATHS)
def test_wire_words_are_no_narrower(glob: str, path: str) -> None:
    """The operators on the wire match all that the glob matches, and nothing else if they claim to be complete."""
    made = parse_rule(glob)
    params, told_all = write_rule(made)
    wider = read_rule(params)
    assert wider.matches_path(path) or not made.matches_path(path)
    if told_all:
        assert wider.matches_path(path) is made.matches_path(path)


HOSTILE = {
    "two stars": ("**a" * 1000 + "**b", "a" * 4096 + "c"),
    "two stars, matching": ("**a" * 1000 + "**", "a" * 4096),
    "one star": ("*a" * 1000 + "*", "b" + "a" * 4000 + "/"),
    "both": ("**a*a" * 500 + "**/*", "a" * 4096),
    "both over slashes": ("**a*a/" * 500 + "b**", "a/" * 2048 + "b"),
    "longer and longer": ("".join(f"**{'a' * n}*" for n in range(1, 60)) + "/", "a" * 4095 + "/"),
    "segments": ("**/*/*" * 300 + "/x/**", "/a" * 2048),
}


@pytest.mark.parametrize(("glob", "path"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_globs(glob: str, path: str) -> None:
    """No glob makes a match take more work than the glob and the path are long, whatever stars it has."""
    matches_path = compile_glob(glob)
    before = meter.units
    matches_path(path)
    assert meter.units - before <= 64 * (len(glob) + len(path))


# Onto the wire and back.

TEXTS = st.text("ab/", max_size=3)
_LISTS = st.lists(TEXTS, max_size=3).map(tuple)
PATH_RULES = st.dictionaries(st.sampled_from(sorted(PATH_TESTS)), st.none(), max_size=4).flatmap(
    lambda ops: st.tuples(*(st.tuples(st.just(op), _LISTS if PATH_TESTS[op].takes_list else TEXTS) for op in ops))
)
OPERANDS: dict[str, st.SearchStrategy[Any]] = {
    "lessThan": st.integers() | TEXTS,
    "greaterThan": st.integers() | TEXTS,
    "atLeast": st.integers() | TEXTS,
    "atMost": st.integers() | TEXTS,
    "equals": st.none() | st.booleans() | st.integers() | TEXTS,
    "equalsNot": st.none() | st.booleans() | st.integers() | TEXTS,
    "isType": st.sampled_from(["number", "string", "boolean", "object"]),
    "hasOneOf": st.lists(st.integers(), max_size=3),
    "hasAllOf": st.lists(st.integers(), max_size=3),
}
STEPS = st.one_of(
    st.just(()), st.lists(st.sampled_from(["a", "b"]) | st.integers(0, 9), min_size=1, max_size=3).map(tuple)
)
VALUE_RULES = st.lists(
    st.sampled_from(sorted(VALUE_TESTS)).flatmap(
        lambda op: st.tuples(STEPS, st.just(op), OPERANDS[op].map(json.dumps))
    ),
    max_size=3,
).map(tuple)
RULES = st.builds(Rule, path=PATH_RULES, case_insensitive=st.just(False), value=VALUE_RULES)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=5,
)


def test_all_value_operators_have_operands() -> None:
    """The strategies below know every value operator."""
    assert OPERANDS.keys() == VALUE_TESTS.keys()


@settings(deadline=None)
@given(made=RULES, path=PATHS, value=JSON_VALUES)
def test_round_trip(made: Rule, path: str, value: Any) -> None:
    """A rule that is written in full comes back from the wire as it was; otherwise the wire's is wider."""
    params, told_all = write_rule(made)
    back = read_rule(json.loads(json.dumps(params)))
    if told_all:
        assert (back.path, sorted(back.value, key=repr)) == (made.path, sorted(made.value, key=repr))
        return
    assert back.matches_path(path) or not made.matches_path(path)
    ours, theirs = made.matches_value, back.matches_value
    if theirs is not None:
        assert ours is not None
        assert theirs(value) or not ours(value)


SORTS: dict[str, dict[str, Any]] = {
    "by path": {"sort_by": "path"},
    "by value": {"sort_by": "value", "descending": True, "first": 2, "last": 3},
    "by text": {"sort_by": "value", "sort_type": "string"},
    "by field": {"sort_by": "value.a[0]", "sort_type": "boolean"},
}


@pytest.mark.parametrize("keywords", SORTS.values(), ids=SORTS)
def test_sorts_come_back(keywords: dict[str, Any]) -> None:
    """The order and window of a sorted rule come back from the wire."""
    made = rule("plant/**", **keywords)
    params, told_all = write_rule(made)
    assert told_all
    assert read_rule(params).sort == made.sort
    assert set(read_rule(params).value) == set(made.value)


# Keywords.

KEYWORDS: dict[str, dict[str, Any]] = {
    "": {},
    "a/b": {"equals": "a/b"},
    "plant/**": {"starts_with": "plant/"},
    "**/speed": {"ends_with": "/speed"},
    "**pump**": {"contains": "pump"},
    "Plant/** nocase": {"starts_with": "Plant/", "case_insensitive": True},
    "value>7": {"value": jetbus.above(7)},
    "value>=7 value<=9": {"value": [jetbus.at_least(7), jetbus.at_most(9)]},
    "value<7": {"value": jetbus.below(7)},
    "value=7": {"value": 7},
    "value=null": {"value": jetbus.equal(None)},
    'value!="x"': {"value": jetbus.not_equal("x")},
    "value:boolean": {"value": jetbus.is_type("boolean")},
    "value>1 value<5": {"value": [jetbus.above(1), jetbus.below(5)]},
    "value.a.b=1": {"fields": {"a.b": 1}},
    "value[1]>0": {"fields": {"[1]": jetbus.above(0)}},
}


@pytest.mark.parametrize(("text", "keywords"), KEYWORDS.items(), ids=map(repr, KEYWORDS))
def test_keywords_equal_text(text: str, keywords: dict[str, Any]) -> None:
    """Keywords say the same as text."""
    assert rule(**keywords) == parse_rule(text) == rule(text)


ONLY_KEYWORDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "equals_not": ({"equals_not": "a"}, {"path": {"equalsNot": "a"}}),
    "equals_one_of": ({"equals_one_of": ["a", "b"]}, {"path": {"equalsOneOf": ["a", "b"]}}),
    "equals_not_one_of": ({"equals_not_one_of": ("a",)}, {"path": {"equalsNotOneOf": ["a"]}}),
    "starts_not_with": ({"starts_not_with": "a"}, {"path": {"startsNotWith": "a"}}),
    "ends_not_with": ({"ends_not_with": "a"}, {"path": {"endsNotWith": "a"}}),
    "contains_not": ({"contains_not": "a"}, {"path": {"containsNot": "a"}}),
    "contains_all_of": ({"contains_all_of": ["a"]}, {"path": {"containsAllOf": ["a"]}}),
    "contains_one_of": ({"contains_one_of": ["a"]}, {"path": {"containsOneOf": ["a"]}}),
    "has_one_of": ({"value": jetbus.has_one_of(1, 2)}, {"value": {"hasOneOf": [1, 2]}}),
    "has_all_of": ({"value": jetbus.has_all_of("a")}, {"value": {"hasAllOf": ["a"]}}),
}


@pytest.mark.parametrize(("keywords", "params"), ONLY_KEYWORDS.values(), ids=ONLY_KEYWORDS)
def test_keywords_on_the_wire(keywords: dict[str, Any], params: dict[str, Any]) -> None:
    """Each keyword is its word of the wire."""
    assert write_rule(rule(**keywords)) == (params, True)


BOTH: dict[str, tuple[str | Rule, dict[str, Any], list[str], list[str]]] = {
    "text and keywords": ("plant/**", {"ends_with": "x"}, ["plant/x"], ["plant/y", "x"]),
    "Rule and keywords": (parse_rule("*/x"), {"starts_with": "a"}, ["a/x"], ["b/x", "a/b/x"]),
    "nocase in the text": ("Plant/** nocase", {"ends_with": "X"}, ["PLANT/x"], ["plant/y"]),
    "nocase alone": ("nocase", {"starts_with": "Plant"}, ["PLANT/x"], ["x"]),
    "nocase by keyword": ("Plant/*", {"case_insensitive": True}, ["PLANT/x", "plant/Y"], ["plant/a/b"]),
    "nocase of a Rule": (parse_rule("A/**"), {"case_insensitive": True, "ends_with": "X"}, ["a/x"], ["a/y"]),
}


@pytest.mark.parametrize(("base", "keywords", "matching", "other"), BOTH.values(), ids=BOTH)
def test_both_must_hold(base: str | Rule, keywords: dict[str, Any], matching: list[str], other: list[str]) -> None:
    """A rule with text and keywords matches where both match."""
    made = rule(base, **keywords)
    assert [path for path in (*matching, *other) if made.matches_path(path)] == matching


WRONG_KEYWORDS: dict[str, tuple[dict[str, Any], str]] = {
    "an operand of the wrong kind": ({"starts_with": 5}, "startsWith takes a string"),
    "a list of the wrong kind": ({"equals_one_of": [5]}, "equalsOneOf takes a list of strings"),
    "an order of nothing": ({"sort_by": "size"}, "sort_by is path, value or value.FIELD"),
    "an order of objects": ({"sort_by": "value", "sort_type": "object"}, "sorted as number, string or boolean"),
    "a position before the first": ({"sort_by": "path", "first": 0}, "counted from 1"),
    "a limit that has no order": ({"value": jetbus.above([1])}, "greaterThan does not take"),  # type: ignore[arg-type]
    "a field that is none": ({"fields": {"a..b": 1}}, "no field path"),
    "a type that is none": ({"value": jetbus.is_type("float")}, "isType takes one of"),
}


@pytest.mark.parametrize(("keywords", "wrong"), WRONG_KEYWORDS.values(), ids=WRONG_KEYWORDS)
def test_wrong_keywords(keywords: dict[str, Any], wrong: str) -> None:
    """A wrong keyword is refused with what would do."""
    with pytest.raises(InvalidRule, match=re.escape(wrong)):
        rule(**keywords)


def test_patterns_have_no_words() -> None:
    """A rule with Lua patterns cannot be told to a daemon in words, so what arrives is tested again."""
    assert write_rule(read_matcher({"match": ["^a%d"], "unmatch": ["b"]})) == ({}, False)
    assert write_rule(read_matcher({"unmatch": ["b"]})) == ({}, False)


def test_long_texts_take_linear_work() -> None:
    """A text of a megabyte of words is read in one pass, or refused for its size."""
    assert parse_rule("a " + "nocase " * 150_000) == parse_rule("a nocase")
