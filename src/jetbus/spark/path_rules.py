"""Fetch rules as SQL: Spark itself decides which rows a rule matches, not a Python worker.

Tests on paths and globs become conditions, for the texts of ``sql_text``. Tests on values do not: a condition that the
user writes in SQL says more and says it better.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from jetbus.entries import BadEntry, read_path_rule
from jetbus.rules import PATH_TESTS, Rule
from jetbus.rules.operators import PathOperator
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.sql_text import quote

__all__ = ["glob_pattern", "matches", "path_rule"]

_RELATIONS = {
    "equals": "{path} = {text}",
    "contains": "contains({path}, {text})",
    "startsWith": "startswith({path}, {text})",
    "endsWith": "endswith({path}, {text})",
}
"""The relations that the operators of rules are made of, in SQL."""


def _test(operator: PathOperator, path: str, operand: str | tuple[str, ...]) -> str:
    """Return one path test of a rule as a condition."""
    texts = [operand] if isinstance(operand, str) else operand
    tests = [_RELATIONS[operator.relation].format(path=path, text=quote(text)) for text in texts]
    # Of an empty list, any is false and all is true, as in the rules of the bus.
    joined = " or ".join(["false", *tests]) if operator.of == "any" else " and ".join(["true", *tests])
    return f"not ({joined})" if operator.negated else f"({joined})"


def path_rule(text: str, *, option: str = "rule") -> Rule:
    """Return the rule of a text that tests paths only; errors name the option it was given as."""
    try:
        return read_path_rule(text)
    except BadEntry as problem:
        raise BadOption(option, problem.problem) from problem


def matches(wanted: Rule) -> str:
    """Return the condition that a rule matches the column ``path``; null matches only the rule without tests."""
    subject = "lower(path)" if wanted.case_insensitive else "path"
    tests = [_test(PATH_TESTS[op], subject, operand) for op, operand in wanted.path]
    if wanted.glob is not None:
        tests.append(f"rlike({subject}, {quote(glob_pattern(wanted.glob))})")
    if not wanted.sees_daemon:
        tests.append("not startswith(path, '$jet/')")
    return f"coalesce({' and '.join(['true', *tests])}, false)"


def glob_pattern(glob: str) -> str:
    """Return a glob as a pattern of Java: ``*`` stays within one part of the path, ``**`` does not.

    A text is looked for from the left, and once it is found its place is final: an earlier place leaves more room for
    the rest than a later one. So the groups are atomic, ``(?>...)``, and a hostile glob cannot make them backtrack.
    Only the stars before the last text are greedy, as that must be at the end of the path.
    """
    first, *groups = [_group_pattern(part) for part in re.split(r"\*\*+", glob)]
    if not groups:
        return f"\\A{first.anchored}\\z"
    *between, last = groups
    search = "".join(f"(?>(?s:.*?){group.found})" for group in between)
    return f"\\A{first.found}{search}(?s:.*){last.anchored}\\z"


class _Group(NamedTuple):
    """The part of a glob between two ``**`` as patterns."""

    found: str
    """The pattern of its first occurrence."""
    anchored: str
    """The pattern where the end of the path must follow."""


def _group_pattern(glob: str) -> _Group:
    first, *others = [re.sub(r"([^\w/ ])", r"\\\1", text) for text in glob.split("*")]
    found = [f"(?>[^/]*?{text})" for text in others]
    anchored = [*found[:-1], *(f"[^/]*{text}" for text in others[-1:])]
    return _Group(first + "".join(found), first + "".join(anchored))
