"""Fetch rules: which states and methods a fetch is about, how they are written by people and on the wire.

There is one ``Rule`` for the whole project. ``rule`` makes it from keywords, ``parse_rule`` from text, ``read_rule``
and ``read_matcher`` from the parameters of a request.
"""

from jetbus.rules.matching import EVERYTHING, Rule, Sort
from jetbus.rules.operators import PATH_TESTS, TYPES, VALUE_TESTS
from jetbus.rules.reading import ALTERNATIVES_MAX, RULES_MAX, read_matcher, read_rule, write_rule
from jetbus.rules.text import (
    Is,
    above,
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
