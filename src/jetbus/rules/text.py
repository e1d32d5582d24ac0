"""Rules as people write them: as text and as keywords.

The grammar of a rule text::

    rule    =  [ path ] { test }                 parts are separated by spaces; the path comes first
    path    =  glob | JSON string                a quoted path is taken exactly as it is
    glob    =  text, "*" for any characters but "/", "**" for any characters
    test    =  "value" field operator operand  |  "nocase"
    field   =  { "." name | "[" index "]" }      nothing: the value itself
    operator=  ">" | "<" | "=" | "!=" | ":"      ":" asks for a type
    operand =  JSON  |  after ":" one of number, string, boolean, object

    plant/pump/speed            exactly that path
    plant/**                    everything below plant
    plant/*/speed value>7       the speed of each thing in the plant, while above 7
    **temp** value.unit="C" nocase

A glob that the wire has no word for is sent as the nearest wider rule and tested again where it arrives.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jetbus.errors import InvalidRule
from jetbus.rules.matching import Rule
from jetbus.rules.operators import VALUE_TESTS, Steps, parse_field
from jetbus.rules.reading import read_rule


class Is(NamedTuple):
    """A test on a value: an operator of the wire and its operand."""

    operator: str
    operand: Any


def above(limit: float | str) -> Is:
    """The value is greater than ``limit``."""
    return Is("greaterThan", limit)


def below(limit: float | str) -> Is:
    """The value is less than ``limit``."""
    return Is("lessThan", limit)


def equal(wanted: Any) -> Is:
    """The value is this number, text, boolean or null."""
    return Is("equals", wanted)


def not_equal(unwanted: Any) -> Is:
    """The value is anything but this."""
    return Is("equalsNot", unwanted)


def is_type(name: str) -> Is:
    """The value is a ``number``, ``string``, ``boolean`` or ``object``."""
    return Is("isType", name)


def has_one_of(*members: Any) -> Is:
    """The value is a list with at least one of these in it."""
    return Is("hasOneOf", list(members))


def has_all_of(*members: Any) -> Is:
    """The value is a list with all of these in it."""
    return Is("hasAllOf", list(members))


_OPERATORS = {">": "greaterThan", "<": "lessThan", "=": "equals", "!=": "equalsNot", ":": "isType"}
_TEST = re.compile(r"value((?:\.[^\s.\[\]<>=!:\"]+|\[\d+\])*)\s*(>|<|=|!=|:)\s*")
_WORD = re.compile(r"\S+")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_rule(text: str) -> Rule:
    """The rule of a text.

    >>> parse_rule("plant/** value>7").matches_path("plant/pump/speed")
    True
    """
    at = len(text) - len(text.lstrip())
    path: str | None = None
    exact = fold = False
    tests: list[tuple[Steps, Is]] = []
    while at < len(text):
        if test := _TEST.match(text, at):
            operand, end = _operand(text, test)
            tests.append((parse_field(test[1].removeprefix(".")), Is(_OPERATORS[test[2]], operand)))
        elif text[at] == '"' and path is None and not tests:
            path, end = _json(text, at)
            exact = True
        else:
            word = _WORD.match(text, at)
            assert word is not None  # noqa: S101 - white space was skipped
            end = word.end()
            if word[0] == "nocase":
                fold = True
            elif path is None and not tests:
                path = word[0]
            else:
                raise InvalidRule(text, f'{word[0]!r} in rule {text!r} is no test such as value>7 or value.unit="C"')
        at = end + len(text[end:]) - len(text[end:].lstrip())
    if path is None:
        return _rule({}, None, fold, tests)
    if exact:
        return _rule({"equals": path}, None, fold, tests)
    wider, glob = _wire_words(path)
    return _rule(wider, glob, fold, tests)


def _operand(text: str, test: re.Match[str]) -> tuple[Any, int]:
    if test[2] == ":":
        word = _WORD.match(text, test.end())
        if word is None:
            raise InvalidRule(text, f"rule {text!r} ends after ':'; a type such as number belongs there")
        return word[0], word.end()
    return _json(text, test.end())


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise InvalidRule(
            text, f'{text[at:]!r} in rule {text!r} does not start with JSON; quote text as "text"'
        ) from None


def _wire_words(glob: str) -> tuple[dict[str, Any], str | None]:
    """The path rules nearest to a glob, and the glob itself where they are wider than it."""
    parts = re.split(r"\*+", glob)
    if len(parts) == 1:
        return {"equals": glob}, None
    first, *middle, last = parts
    words: dict[str, Any] = {}
    if first:
        words["startsWith"] = first
    if last:
        words["endsWith"] = last
    middle = [part for part in middle if part]
    if len(middle) == 1:
        words["contains"] = middle[0]
    elif middle:
        words["containsAllOf"] = middle
    only_any_text = all(stars == "**" for stars in re.findall(r"\*+", glob))
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
    value: Any = None,
    fields: Mapping[str, Any] | None = None,
    sort_by: str | None = None,
    sort_type: str = "number",
    descending: bool = False,
    first: int = 1,
    last: int = 10,
) -> Rule:
    """A rule from text, keywords or both: all must hold. ``value`` and ``fields`` take tests such as ``above(7)``.

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
        base = _folded(base)
    fold = case_insensitive or (base is not None and base.case_insensitive)
    made = _rule(given, None, fold, tests)
    if sort_by is not None:
        made = _sorted(made, sort_by, sort_type, descending, first, last)
    return made if base is None else base.both(made)


def _tests(given: Any) -> list[Is]:
    if given is None:
        return []
    if isinstance(given, Is):
        return [given]
    if isinstance(given, tuple | list) and all(isinstance(one, Is) for one in given):
        return list(given)
    return [equal(given)]


def _rule(words: dict[str, Any], glob: str | None, fold: bool, tests: list[tuple[Steps, Is]]) -> Rule:
    base = read_rule({"path": {**words, "caseInsensitive": fold}})
    value = []
    for steps, (operator, operand) in tests:
        known = VALUE_TESTS[operator]
        if not known.accepts(operand):
            raise InvalidRule(operator, f"{operator} does not take {operand!r}")
        known.test(operand)
        value.append((steps, operator, json.dumps(operand, sort_keys=True)))
    return Rule(path=base.path, case_insensitive=fold, value=tuple(value), glob=glob.lower() if glob and fold else glob)


def _folded(made: Rule) -> Rule:
    """The same rule, whatever the case of letters."""
    path = tuple(
        (op, operand.lower() if isinstance(operand, str) else tuple(one.lower() for one in operand))
        for op, operand in made.path
    )
    return dataclasses.replace(made, path=path, case_insensitive=True, glob=made.glob and made.glob.lower())


def _sorted(made: Rule, sort_by: str, sort_type: str, descending: bool, first: int, last: int) -> Rule:
    window = {"descending": descending, "from": first, "to": last}
    if sort_by == "path":
        order: dict[str, Any] = {"byPath": True}
    elif sort_by == "value":
        order = {"byValue": sort_type}
    elif sort_by.startswith(("value.", "value[")):
        order = {"byValueField": {sort_by.removeprefix("value").removeprefix("."): sort_type}}
    else:
        raise InvalidRule(sort_by, f"sort_by is path, value or value.FIELD, not {sort_by!r}")
    return made.both(read_rule({"sort": order | window}))
