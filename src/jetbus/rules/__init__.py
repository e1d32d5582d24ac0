"""Fetch rules: tests that select states and methods by path and value.

All spellings of a rule become one immutable ``Rule``::

    rule("plant/** value>7")                  text           parse_rule, in ``text``  \\
    rule(starts_with="plant/", ...)           keywords       rule, in ``text``         >  Rule, in ``matching``
    {"path": {"startsWith": "plant/"}, ...}   parameters     read_rule, in ``decoding`` /

A rule is composed of operators, which are rows of two tables in ``operators``. Globs and Lua patterns are matched
without backtracking, and ``work`` counts the cost of rules, because they come from strangers.
"""

from jetbus.rules.decoding import ALTERNATIVES_MAX, RULES_MAX, read_matcher, read_rule, write_rule
from jetbus.rules.matching import EVERYTHING, Rule, Sort
from jetbus.rules.operators import PATH_TESTS, TYPES, VALUE_TESTS
from jetbus.rules.text import (
    Is,
    above,
    at_least,
    at_most,
    below,
    equal,
    has_all_of,
    has_one_of,
    is_type,
    not_equal,
    parse_rule,
    rule,
)

__all__ = [
    "ALTERNATIVES_MAX",
    "EVERYTHING",
    "PATH_TESTS",
    "RULES_MAX",
    "TYPES",
    "VALUE_TESTS",
    "Is",
    "Rule",
    "Sort",
    "above",
    "at_least",
    "at_most",
    "below",
    "equal",
    "has_all_of",
    "has_one_of",
    "is_type",
    "not_equal",
    "parse_rule",
    "read_matcher",
    "read_rule",
    "rule",
    "write_rule",
]
