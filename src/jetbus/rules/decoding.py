"""Rules in the parameters of a fetch: reading every dialect's spelling, writing the classic one.

The classic members ``path``, ``value``, ``valueField`` and ``sort``, the members ``{"operator", "value"}`` of node-jet
3 and the ``matcher`` of 2012 all become one ``Rule``. Errors in rules are found here and nowhere else.
"""

from __future__ import annotations

import json

from jetbus.errors import InvalidRule, WrongType
from jetbus.json_types import Json, JsonObject
from jetbus.rules.matching import Rule, Sort
from jetbus.rules.operators import PATH_TESTS, VALUE_TESTS, Steps, format_field, parse_field

RULES_MAX = 100
"""Maximum number of operators and fields in one rule."""
ALTERNATIVES_MAX = 100_000
"""Maximum length of an operand that is a list, such as the paths of ``equalsOneOf``; daemons allow less."""


def read_rule(params: JsonObject) -> Rule:
    """Return the rule in the parameters of a fetch or get, in any spelling but that of 2012; see ``read_matcher``."""
    path = params.get("path")
    if path is None:
        path = {}
    if not isinstance(path, dict):
        raise WrongType("path")
    # Peers write the flag among the operators of the path or next to ``path``.
    fold = bool(path.get("caseInsensitive", params.get("caseInsensitive", False)))
    path_tests = tuple(_read_path_test(op, operand, fold) for op, operand in path.items() if op != "caseInsensitive")
    # If both are given, ``value`` counts, as in the classic protocol; ``write_rule`` writes only one of them, too.
    value_tests = _read_value(params.get("value")) or _read_value_fields(params.get("valueField"))
    sort, implied = _read_sort(params.get("sort"))
    _check_size(path_tests, value_tests)
    return Rule(path=path_tests, case_insensitive=fold, value=(*value_tests, *implied), sort=sort)


def _read_path_test(op: str, operand: Json, fold: bool) -> tuple[str, str | tuple[str, ...]]:
    operator = PATH_TESTS.get(op)
    if operator is None:
        raise InvalidRule(op, f"there is no path rule {op!r}; there are {', '.join(PATH_TESTS)}")
    if operator.takes_list:
        if not isinstance(operand, list) or not all(isinstance(one, str) for one in operand):
            raise InvalidRule(op, f"{op} takes a list of strings")
        if len(operand) > ALTERNATIVES_MAX:
            raise InvalidRule(op, f"{op} takes at most {ALTERNATIVES_MAX} strings; use several fetches")
        return op, tuple(one.lower() if fold else one for one in operand)
    if not isinstance(operand, str):
        raise InvalidRule(op, f"{op} takes a string")
    return op, operand.lower() if fold else operand


_ValueTests = tuple[tuple[Steps, str, str], ...]


def _read_value(value: Json) -> _ValueTests:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise WrongType("value")
    tests = []
    for name, member in value.items():
        # node-jet 3 has the field as the name: {"a.b": {"operator": "equals", "value": 1}}.
        if isinstance(member, dict) and "operator" in member:
            if member.get("value") is None:
                raise InvalidRule(name, "the operand must not be null")
            tests.append(_read_value_test(parse_field(name), member["operator"], member["value"]))
        else:
            tests.append(_read_value_test((), name, member))
    return tuple(tests)


def _read_value_fields(fields: Json) -> _ValueTests:
    if fields is None:
        return ()
    if not isinstance(fields, dict) or not all(isinstance(tests, dict) for tests in fields.values()):
        raise WrongType("valueField")
    return tuple(
        _read_value_test(parse_field(field), op, operand)
        for field, tests in fields.items()
        for op, operand in tests.items()
    )


def _read_value_test(steps: Steps, op: Json, operand: Json) -> tuple[Steps, str, str]:
    operator = VALUE_TESTS.get(op) if isinstance(op, str) else None
    if operator is None:
        raise InvalidRule(op, f"there is no value rule {op!r}; there are {', '.join(VALUE_TESTS)}")
    if not operator.accepts(operand):
        raise InvalidRule(op, f"{op} does not take {operand!r}")
    if isinstance(operand, list) and len(operand) > ALTERNATIVES_MAX:
        raise InvalidRule(op, f"{op} takes at most {ALTERNATIVES_MAX} values")
    # Composed only to refuse a bad operand now, such as an unknown type, while there is a request to answer.
    operator.test(operand)
    # Sorted members make equal operands equal texts, by which fetches find that they can share their work.
    return steps, op, json.dumps(operand, sort_keys=True)


def _read_sort(sort: Json) -> tuple[Sort | None, _ValueTests]:
    """Return the sort, and the type test that sorting by a value implies."""
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
    # Values of other types have no place in the order, so they must not match.
    return ordered, (_read_value_test(by, "isType", type_name),)


def _read_sort_field(sort: JsonObject) -> tuple[Steps | None, Json]:
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


def read_matcher(matcher: Json) -> Rule:
    """Return the rule of a ``matcher`` of 2012: a Lua pattern, or lists ``match`` and ``unmatch`` of patterns."""
    if isinstance(matcher, str):
        matcher = {"match": [matcher]}
    if not isinstance(matcher, dict):
        raise WrongType("matcher")
    match, unmatch = _read_patterns(matcher, "match"), _read_patterns(matcher, "unmatch")
    # Ignored, a misspelt list would match everything.
    unknown = next((name for name in matcher if name not in ("match", "unmatch")), None)
    if unknown is not None:
        raise InvalidRule(unknown, f"a matcher has the lists match and unmatch, not {unknown!r}")
    if not match and not unmatch:
        raise InvalidRule("match", "a matcher has at least one pattern")
    rule = Rule(lua_match=match, lua_unmatch=unmatch)
    _check_size(match, unmatch)
    try:
        # Composes all patterns, which is the only way to find a malformed one.
        _ = rule.matches_path
    except ValueError as problem:
        raise InvalidRule(str(problem)) from problem
    return rule


def _read_patterns(matcher: JsonObject, name: str) -> tuple[str, ...]:
    patterns = matcher.get(name)
    if patterns is None:
        return ()
    if isinstance(patterns, str):
        patterns = [patterns]
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise WrongType(name)
    return tuple(patterns)


def _check_size(*tests: tuple[Json, ...]) -> None:
    if sum(len(some) for some in tests) > RULES_MAX:
        raise InvalidRule("path", f"a fetch takes at most {RULES_MAX} rules")


def write_rule(rule: Rule) -> tuple[JsonObject, bool]:
    """Return the parameters of a fetch for a rule, and False if they match more, so that events need another test."""
    path: JsonObject = {}
    for op, operand in rule.path:
        # An object has each operator once. A second one is left out here, and the count below makes the result inexact.
        path.setdefault(op, list(operand) if isinstance(operand, tuple) else operand)
    if rule.case_insensitive and path:
        path["caseInsensitive"] = True
    value: JsonObject = {}
    fields: dict[str, JsonObject] = {}
    for steps, op, operand in rule.value:
        (fields.setdefault(format_field(steps), {}) if steps else value).setdefault(op, json.loads(operand))
    params: JsonObject = {}
    if path:
        params["path"] = path
    if value:
        params["value"] = value
    elif fields:
        params["valueField"] = fields
    if rule.sort is not None:
        params["sort"] = _write_sort(rule.sort)
    # Each test that could not be written makes the parameters match more than the rule does, never less.
    written = len(path) - bool(path.get("caseInsensitive")) + (len(value) or sum(map(len, fields.values())))
    inexpressible = rule.glob is not None or rule.lua_match or rule.lua_unmatch
    return params, not inexpressible and written == len(rule.path) + len(rule.value)


def _write_sort(sort: Sort) -> JsonObject:
    if sort.by is None:
        order: JsonObject = {"byPath": True}
    elif sort.by:
        order = {"byValueField": {format_field(sort.by): sort.type}}
    else:
        order = {"byValue": sort.type}
    return {**order, "descending": sort.descending, "from": sort.first, "to": sort.last}
