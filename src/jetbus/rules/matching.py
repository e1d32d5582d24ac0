"""A rule: which states and methods a fetch is about, and in which order. Immutable and comparable, so that equal
fetches can share their work.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jetbus.errors import InvalidRule
from jetbus.luapattern import lua_matcher
from jetbus.rules.operators import ABSENT, PATH_TESTS, VALUE_TESTS, PathTest, Steps, ValueTest, field_of


@dataclass(frozen=True, slots=True)
class Sort:
    """The order and window of a sorted fetch: positions ``first`` to ``last``, counted from 1."""

    by: Steps | None = None
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

    >>> Rule(path=(("startsWith", "plant/"),)).matches_path("plant/pump/speed")
    True
    """

    path: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    case_insensitive: bool = False
    value: tuple[tuple[Steps, str, str], ...] = ()
    """Field path, operator and operand as JSON text (so that equal rules are equal)."""
    glob: str | None = None
    """A pattern with * and ** that must match as well; the wire has no word for it."""
    lua_match: tuple[str, ...] = ()
    lua_unmatch: tuple[str, ...] = ()
    sort: Sort | None = None

    @cached_property
    def matches_path(self) -> PathTest:
        """The test on a path, composed once."""
        tests = [PATH_TESTS[op].test(operand) for op, operand in self.path]
        if self.glob is not None:
            tests.append(_glob_test(self.glob))
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
            self.glob is None
            and not self.lua_match
            and not self.lua_unmatch
            and (not self.path or (len(self.path) == 1 and (self.exact_paths is not None or self.prefix != "")))
        )

    @cached_property
    def sees_daemon(self) -> bool:
        """Whether the daemon's own states may match: only where the rule itself starts with ``$``."""
        starts = [operand for op, operand in self.path if op in ("equals", "equalsOneOf", "startsWith")]
        return any(text.startswith("$") for start in starts for text in ([start] if isinstance(start, str) else start))

    def both(self, other: Rule) -> Rule:
        """The rule that holds where this one and the other hold; the other's order, if it has one."""
        if self.case_insensitive != other.case_insensitive and self.path and other.path:
            raise InvalidRule("caseInsensitive", "one rule cannot be case-insensitive in one part only")
        return Rule(
            path=self.path + other.path,
            case_insensitive=self.case_insensitive or other.case_insensitive,
            value=self.value + other.value,
            glob=self.glob if other.glob is None else other.glob,
            lua_match=self.lua_match or other.lua_match,
            lua_unmatch=self.lua_unmatch + other.lua_unmatch,
            sort=other.sort or self.sort,
        )


def _glob_test(glob: str) -> PathTest:
    pieces = re.split(r"(\*+)", glob)
    pattern = "".join(_STARS.get(piece[:2]) or re.escape(piece) for piece in pieces)
    match = re.compile(pattern, re.DOTALL).fullmatch
    return lambda path: match(path) is not None


_STARS = {"*": "[^/]*", "**": ".*"}

EVERYTHING = Rule()
