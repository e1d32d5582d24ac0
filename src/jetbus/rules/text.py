"""Rules as people write them, as text or as keywords.

The grammar of a rule text::

    rule    =  [ path ] { test }                 parts are separated by spaces; the path comes first
    path    =  glob | JSON string                a quoted path is taken exactly as it is
    glob    =  text, "*" for any characters but "/", "**" for any characters
    test    =  "value" field operator operand  |  "nocase"
    field   =  { "." name | "[" index "]" }      nothing: the value itself
    operator=  ">" | "<" | ">=" | "<=" | "=" | "!=" | ":"      ":" asks for a type
    operand =  JSON  |  after ":" one of number, string, boolean, object

    plant/pump/speed            exactly that path
    plant/**                    everything below plant
    plant/*/speed value>7       the speed of each thing in the plant, while above 7
    **temp** value.unit="C" nocase

A glob that the wire cannot express is sent as the narrowest rule that covers it. The receiver tests the glob again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jetbus.errors import InvalidRule
from jetbus.json_types import Json, JsonObject
from jetbus.rules.decoding import read_rule
from jetbus.rules.matching import Rule
from jetbus.rules.operators import VALUE_TESTS, Steps, parse_field


class Is(NamedTuple):
    """A test of a value: an operator of the wire and its operand."""

    operator: str
    operand: Json


def above(limit: float | str) -> Is:
    """Test that the value is greater than ``limit``."""
    return Is("greaterThan", limit)


def below(limit: float | str) -> Is:
    """Test that the value is less than ``limit``."""
    return Is("lessThan", limit)


def at_least(limit: float | str) -> Is:
    """Test that the value is ``limit`` or greater."""
    return Is("atLeast", limit)


def at_most(limit: float | str) -> Is:
    """Test that the value is ``limit`` or less."""
    return Is("atMost", limit)


def equal(wanted: Json) -> Is:
    """Test that the value is this number, text, boolean or null."""
    return Is("equals", wanted)


def not_equal(unwanted: Json) -> Is:
    """Test that the value is anything but this."""
    return Is("equalsNot", unwanted)


def is_type(name: str) -> Is:
    """Test that the value is a ``number``, ``string``, ``boolean`` or ``object``."""
    return Is("isType", name)


def has_one_of(*members: Json) -> Is:
    """Test that the value is a list with at least one of these members."""
    return Is("hasOneOf", list(members))


def has_all_of(*members: Json) -> Is:
    """Test that the value is a list with all of these members."""
    return Is("hasAllOf", list(members))


_OPERATORS = {
    ">": "greaterThan",
    "<": "lessThan",
    ">=": "atLeast",
    "<=": "atMost",
    "=": "equals",
    "!=": "equalsNot",
    ":": "isType",
}
# Longer operators first: with > before >=, value>=7 would be read as value> and the operand =7.
_TEST = re.compile(r"value((?:\.[^\s.\[\]<>=!:\"]+|\[\d+\])*)\s*(>=|<=|>|<|=|!=|:)\s*")
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Only raw_decode of a decoder stops behind one value, so that further tests can follow it. NaN and Infinity are
# extensions of Python, which a daemon could not read.
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_rule(text: str) -> Rule:
    """Return the rule that a text describes.

    >>> parse_rule("plant/** value>7").matches_path("plant/pump/speed")
    True
    """
    at = _skip_space(text, 0)
    path: str | None = None
    exact = fold = False
    tests: list[tuple[Steps, Is]] = []
    while at < len(text):
        # Tests are tried first, so a path that looks like one, such as value>7, has to be quoted.
        if test := _TEST.match(text, at):
            operand, end = _operand(text, test)
            tests.append((parse_field(test[1].removeprefix(".")), Is(_OPERATORS[test[2]], operand)))
        # A quoted path is taken literally, for paths with stars or spaces in them.
        elif text[at] == '"' and path is None and not tests:
            path, end = _json(text, at)
            exact = True
        else:
            word = _WORD.match(text, at)
            assert word is not None  # noqa: S101 - white space was skipped
            end = word.end()
            if word[0] == "nocase":
                fold = True
            # Behind a test, a word is more likely a mistyped test than a path.
            elif path is None and not tests:
                path = word[0]
                if glob := translate_topic(path):
                    advice = f"use {glob}, where * is any part and ** is everything below; quote a path that is exact"
                    raise InvalidRule(text, f"+ and # in rule {text!r} mean nothing on this bus; {advice}")
            else:
                raise InvalidRule(text, f'{word[0]!r} in rule {text!r} is no test such as value>7 or value.unit="C"')
        at = _skip_space(text, end)
    if path is None:
        return _compose({}, None, fold, tests)
    if exact:
        return _compose({"equals": path}, None, fold, tests)
    cover, glob = _cover_glob(path)
    return _compose(cover, glob, fold, tests)


def translate_topic(path: str) -> str | None:
    """Return the glob for a topic filter of MQTT, which has ``+`` or ``#`` as a part; None if it has neither.

    >>> translate_topic("indoor/+/temp"), translate_topic("indoor/#"), translate_topic("a+b")
    ('indoor/*/temp', 'indoor/**', None)
    """
    parts = path.split("/")
    translated = [{"+": "*", "#": "**"}.get(part, part) for part in parts]
    return None if translated == parts else "/".join(translated)


def _skip_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _operand(text: str, test: re.Match[str]) -> tuple[Json, int]:
    if test[2] == ":":
        word = _WORD.match(text, test.end())
        if word is None:
            raise InvalidRule(text, f"rule {text!r} ends after ':'; a type such as number belongs there")
        return word[0], word.end()
    return _json(text, test.end())


def _json(text: str, at: int) -> tuple[Json, int]:
    try:
        return _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise InvalidRule(
            text, f'{text[at:]!r} in rule {text!r} does not start with JSON; quote text as "text"'
        ) from None


def _cover_glob(glob: str) -> tuple[JsonObject, str | None]:
    """Return path operators that cover a glob, and the glob itself if they cover more than it matches."""
    parts = re.split(r"\*+", glob)
    if len(parts) == 1:
        return {"equals": glob}, None
    first, *middle, last = parts
    words: JsonObject = {}
    if first:
        words["startsWith"] = first
    if last:
        words["endsWith"] = last
    middle = [part for part in middle if part]
    if len(middle) == 1:
        words["contains"] = middle[0]
    elif middle:
        words["containsAllOf"] = middle
    # ``*`` stops at slashes, which no operator of the wire can express; then the glob itself has to be tested, too.
    only_any_text = all(stars == "**" for stars in re.findall(r"\*+", glob))
    # Two operators may find their texts at the same place: a**a does not match the path a, which starts with a and ends
    # with a. And containsAllOf does not look at the order of its texts.
    exact = only_any_text and len(words) <= 1 and len(middle) <= 1
    return words, None if exact else glob


def rule(
    text: str | Rule | None = None,
    *,
    equals: str | None = None,
    equals_not: str | None = None,
    equals_one_of: Sequence[str] | None = None,
    equals_not_one_of: Sequence[str] | None = None,
    starts_with: str | None = None,
    starts_not_with: str | None = None,
    ends_with: str | None = None,
    ends_not_with: str | None = None,
    contains: str | None = None,
    contains_not: str | None = None,
    contains_all_of: Sequence[str] | None = None,
    contains_one_of: Sequence[str] | None = None,
    case_insensitive: bool = False,
    value: Json = None,
    fields: Mapping[str, Json] | None = None,
    sort_by: str | None = None,
    sort_type: str = "number",
    descending: bool = False,
    first: int = 1,
    last: int = 10,
) -> Rule:
    """Return a rule from text, keywords or both. ``value`` and ``fields`` take tests such as ``above(7)``.

    >>> rule(starts_with="plant/", value=above(7)) == rule("plant/** value>7")
    True
    """
    words = {
        "equals": equals,
        "equalsNot": equals_not,
        "equalsOneOf": equals_one_of,
        "equalsNotOneOf": equals_not_one_of,
        "startsWith": starts_with,
        "startsNotWith": starts_not_with,
        "endsWith": ends_with,
        "endsNotWith": ends_not_with,
        "contains": contains,
        "containsNot": contains_not,
        "containsAllOf": contains_all_of,
        "containsOneOf": contains_one_of,
    }
    given = {
        op: list(operand) if op.endswith("Of") else operand for op, operand in words.items() if operand is not None
    }
    tests: list[tuple[Steps, Is]] = [((), test) for test in _tests(value)]
    tests += [(parse_field(field), test) for field, some in (fields or {}).items() for test in _tests(some)]
    base = parse_rule(text) if isinstance(text, str) else text
    if base is not None and case_insensitive:
        base = _ignore_case(base)
    # Text and keywords have to agree, since ``both`` refuses a rule that ignores case in one part only.
    fold = case_insensitive or (base is not None and base.case_insensitive)
    composed = _compose(given, None, fold, tests)
    if sort_by is not None:
        composed = _add_sort(composed, sort_by, sort_type, descending, first, last)
    return composed if base is None else base.both(composed)


def _tests(given: Json) -> list[Is]:
    if given is None:
        return []
    if isinstance(given, Is):
        return [given]
    if isinstance(given, tuple | list) and all(isinstance(one, Is) for one in given):
        return list(given)
    return [equal(given)]


def _compose(words: JsonObject, glob: str | None, fold: bool, tests: list[tuple[Steps, Is]]) -> Rule:
    # The same way as from the network: the same checks, and operands in lower case where case is ignored.
    base = read_rule({"path": {**words, "caseInsensitive": fold}})
    value = []
    for steps, (operator, operand) in tests:
        known = VALUE_TESTS[operator]
        if not known.accepts(operand):
            raise InvalidRule(operator, f"{operator} does not take {operand!r}")
        # Composed once to refuse a bad operand here, where the text of the rule is still known.
        known.test(operand)
        value.append((steps, operator, json.dumps(operand, sort_keys=True)))
    return Rule(path=base.path, case_insensitive=fold, value=tuple(value), glob=glob.lower() if glob and fold else glob)


def _ignore_case(rule: Rule) -> Rule:
    """Return the same rule without regard to upper and lower case."""
    path = tuple(
        (op, operand.lower() if isinstance(operand, str) else tuple(one.lower() for one in operand))
        for op, operand in rule.path
    )
    return dataclasses.replace(rule, path=path, case_insensitive=True, glob=rule.glob and rule.glob.lower())


def _add_sort(unsorted: Rule, sort_by: str, sort_type: str, descending: bool, first: int, last: int) -> Rule:
    positions = {"descending": descending, "from": first, "to": last}
    if sort_by == "path":
        order: JsonObject = {"byPath": True}
    elif sort_by == "value":
        order = {"byValue": sort_type}
    elif sort_by.startswith(("value.", "value[")):
        order = {"byValueField": {sort_by.removeprefix("value").removeprefix("."): sort_type}}
    else:
        raise InvalidRule(sort_by, f"sort_by is path, value or value.FIELD, not {sort_by!r}")
    # ``read_rule`` also adds the test of the type that sorting by a value implies.
    return unsorted.both(read_rule({"sort": order | positions}))
