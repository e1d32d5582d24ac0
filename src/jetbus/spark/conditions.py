"""Fetch rules as Spark columns: which rows a rule is about, decided by Spark itself and not by Python workers.

Tests on paths and globs become columns. Tests on values do not: a condition in SQL says more and says it better.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.errors import JetError
from jetbus.rules import Rule, rule
from jetbus.spark.errors import BadOption

__all__ = ["matches", "path_rule"]

Operand = str | tuple[str, ...]


def _any_of(test: Callable[[Column, str], Column]) -> Callable[[Column, Operand], Column]:
    def of(path: Column, operands: Operand) -> Column:
        found = F.lit(False)
        for operand in operands:
            found = found | test(path, operand)
        return found

    return of


def _one(test: Callable[[Column, str], Column]) -> Callable[[Column, Operand], Column]:
    return lambda path, operand: test(path, str(operand))


def _contains_all(path: Column, operands: Operand) -> Column:
    found = F.lit(True)
    for operand in operands:
        found = found & path.contains(operand)
    return found


_TESTS: dict[str, Callable[[Column, Operand], Column]] = {
    "equals": _one(lambda path, want: path == want),
    "equalsNot": _one(lambda path, want: path != want),
    "contains": _one(lambda path, part: path.contains(part)),
    "containsNot": _one(lambda path, part: ~path.contains(part)),
    "containsAllOf": _contains_all,
    "containsOneOf": _any_of(lambda path, part: path.contains(part)),
    "startsWith": _one(lambda path, start: path.startswith(start)),
    "startsNotWith": _one(lambda path, start: ~path.startswith(start)),
    "endsWith": _one(lambda path, end: path.endswith(end)),
    "endsNotWith": _one(lambda path, end: ~path.endswith(end)),
    "equalsOneOf": lambda path, wanted: path.isin(*wanted),
    "equalsNotOneOf": lambda path, unwanted: ~path.isin(*unwanted),
}


def path_rule(text: str, *, option: str = "rule") -> Rule:
    """A rule about paths, from its text; ``option`` is what to call it where it is wrong."""
    try:
        wanted = rule(text)
    except JetError as problem:
        raise BadOption(option, str(problem)) from problem
    if wanted.value:
        raise BadOption(option, f'{text!r} has tests on values; say them in SQL, such as "num > 7"')
    if wanted.sort is not None:
        raise BadOption(option, f"{text!r} sorts; order the rows of the result instead")
    return wanted


def matches(wanted: Rule, path: Column) -> Column:
    """Whether a rule is about a path; null paths match nothing but the rule about everything."""
    subject = F.lower(path) if wanted.case_insensitive else path
    found = F.lit(True)
    for op, operand in wanted.path:
        found = found & _TESTS[op](subject, operand)
    if wanted.glob is not None:
        found = found & subject.rlike(_glob_pattern(wanted.glob))
    if not wanted.sees_daemon:
        found = found & ~path.startswith("$jet/")
    return F.coalesce(found, F.lit(False))


def _glob_pattern(glob: str) -> str:
    """A glob as a pattern of Java: ``*`` stays within one part of the path, ``**`` does not."""
    stars = {"**": "(?s:.*)", "*": "[^/]*"}
    quoted = [stars.get(part[:2]) or re.sub(r"([^\w/ ])", r"\\\1", part) for part in re.split(r"(\*+)", glob)]
    return f"\\A{''.join(quoted)}\\z"
