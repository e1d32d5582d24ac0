"""Rules and how they are applied.

A rule is immutable and comparable, so that fetches with equal rules share their work. The bus does not test all rules
for every new path. It looks them up, by properties that are computed once per rule::

    exact_paths         the rule names its paths     found in a dictionary by path
    prefix              all paths start with it      found in a dictionary by prefix
    neither             any path may match           tested one by one
    is_found_by_index   the look-up alone decides; no test of the path is needed
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from jetbus.errors import InvalidRule
from jetbus.json_types import Json
from jetbus.luapattern import lua_matcher
from jetbus.rules.globs import compile_glob
from jetbus.rules.operators import ABSENT, FEW, PATH_TESTS, VALUE_TESTS, PathTest, Steps, ValueTest, find_field
from jetbus.rules.work import meter


@dataclass(frozen=True, slots=True)
class Sort:
    """The order of a sorted fetch and its visible positions, ``first`` to ``last``, counted from 1."""

    by: Steps | None = None
    """Field path of the value to sort by; None to sort by path."""
    type: str = "string"
    descending: bool = False
    first: int = 1
    last: int = 10

    def key(self, path: str, value: Any) -> Any:
        """Return the sort key of an entry; its value must match the rule."""
        return path if self.by is None else find_field(value, self.by)


# Without slots, unlike Sort: cached_property keeps its results in the __dict__ of the rule.
@dataclass(frozen=True)
class Rule:
    """Tests that a state or method must pass to match, all of them, and an order.

    >>> Rule(path=(("startsWith", "plant/"),)).matches_path("plant/pump/speed")
    True
    """

    path: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    case_insensitive: bool = False
    value: tuple[tuple[Steps, str, str], ...] = ()
    """Field path, operator and operand as JSON text, which is hashable and comparable."""
    glob: str | None = None
    """Glob that must match as well; it is not an operator on the wire."""
    lua_match: tuple[str, ...] = ()
    lua_unmatch: tuple[str, ...] = ()
    sort: Sort | None = None

    @cached_property
    def matches_path(self) -> PathTest:
        """Test of a path, composed once."""
        tests = [PATH_TESTS[op].test(operand) for op, operand in self.path]
        # After the operators: those that cover the glob are cheaper and reject most paths before it.
        if self.glob is not None:
            tests.append(compile_glob(self.glob))
        if self.lua_match:
            any_of = [lua_matcher(pattern, meter) for pattern in self.lua_match]
            tests.append(lambda path: any(test(path) for test in any_of))
        # Patterns to match are alternatives, patterns not to match all count: so daemons of 2012 read them.
        none_of = [lua_matcher(pattern, meter) for pattern in self.lua_unmatch]
        if none_of:
            tests.append(lambda path: not any(test(path) for test in none_of))
        if not tests:
            return lambda _path: True
        # Most rules have one test, for which all() would cost more than the test itself.
        test_all = tests[0] if len(tests) == 1 else (lambda path: all(test(path) for test in tests))
        # Operands were lowered when the rule was read, so only the path is left to do.
        return (lambda path: test_all(path.lower())) if self.case_insensitive else test_all

    @cached_property
    def matches_value(self) -> ValueTest | None:
        """Test of a decoded value, None if the rule does not test values."""
        return _compose_value_test(self.value) if self.value else None

    @cached_property
    def exact_paths(self) -> tuple[str, ...] | None:
        """The only paths that can match, None if the rule does not name them."""
        # The index has paths as they are written, so it cannot find them in another case.
        if self.case_insensitive:
            return None
        for op, operand in self.path:
            # One such test is enough: whatever the others say, no other path can match.
            if op == "equals" and isinstance(operand, str):
                return (operand,)
            if op == "equalsOneOf" and isinstance(operand, tuple):
                # A path that the list names twice must not be found twice.
                return tuple(dict.fromkeys(operand))
        return None

    @cached_property
    def prefix(self) -> str:
        """Longest text that every matching path is known to start with."""
        # There can be several, as ``both`` joins rules. All of them must hold, so the longest one decides.
        starts = [str(operand) for op, operand in self.path if op == "startsWith" and not self.case_insensitive]
        return max(starts, key=len, default="")

    @cached_property
    def is_found_by_index(self) -> bool:
        """True if ``exact_paths`` or ``prefix`` decide about a path without further tests."""
        return (
            # Tests of the value do not matter here: they come after the path was found, in whatever way.
            self.glob is None
            and not self.lua_match
            and not self.lua_unmatch
            and (not self.path or (len(self.path) == 1 and (self.exact_paths is not None or self.prefix != "")))
        )

    @property
    def lists(self) -> Iterator[tuple[str, int]]:
        """Operators that take lists, each with the length of its list."""
        yield from ((op, len(operand)) for op, operand in self.path if isinstance(operand, tuple))
        # Operands of value tests are JSON text, in which only a list starts with a bracket.
        yield from ((op, len(json.loads(operand))) for _, op, operand in self.value if operand.startswith("["))

    @cached_property
    def tests(self) -> int:
        """Number of tests, for a limit on them. A pattern or list counts once more for every 16 of its length.

        Lists of whole paths count once, because a path is looked up in them.
        """
        lengths = [0 if PATH_TESTS[op].relation == "equals" else len(text) for op, text in self.path if _is_list(text)]
        # ``lists`` has those of the path, too, which are counted already; hasOneOf and hasAllOf are left.
        lengths += [length for op, length in self.lists if op in VALUE_TESTS and op not in PATH_TESTS]
        lengths += map(len, (*self.lua_match, *self.lua_unmatch))
        patterns = len(self.lua_match) + len(self.lua_unmatch)
        return len(self.path) + len(self.value) + patterns + sum(length // 16 for length in lengths)

    @cached_property
    def kept_bytes(self) -> int:
        """Estimate of the memory that the rule takes, with its tests composed."""
        texts: list[str] = [*self.lua_match, *self.lua_unmatch, self.glob or ""]
        for _, operand in self.path:
            texts += (operand,) if isinstance(operand, str) else operand
        # A list in an operand of a value test has its items in one text.
        listed = sum(length for op, length in self.lists if op in VALUE_TESTS and op not in PATH_TESTS)
        for steps, _, operand in self.value:
            texts += (operand, *map(str, steps))
        return 1_000 * self.tests + 200 * (len(texts) + listed) + 4 * sum(map(len, texts))

    @cached_property
    def reports_work(self) -> bool:
        """True if a single test of a path can be so slow that it counts its own work."""
        return bool(self.glob is not None or self.lua_match or self.lua_unmatch or any(map(_is_long, self.path)))

    @cached_property
    def has_back_references(self) -> bool:
        """True if the work of a test can grow exponentially, as with ``(.-)(.-)%1%2``."""
        return any(re.search(r"%[1-9]", pattern) for pattern in (*self.lua_match, *self.lua_unmatch))

    @cached_property
    def sees_daemon(self) -> bool:
        """True if built-in states may match: only if the rule itself starts with ``$``."""
        # A rule for everything means everything of the peers. The daemon's own states have to be asked for.
        starts = [operand for op, operand in self.path if op in ("equals", "equalsOneOf", "startsWith")]
        return any(text.startswith("$") for start in starts for text in ([start] if isinstance(start, str) else start))

    def both(self, other: Rule) -> Rule:
        """Return the rule that matches where both rules match, in the order of the other one if it has one."""
        # The flag is one for the whole rule; there is nothing to say it for a part.
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


@lru_cache(maxsize=1024)
def _compose_value_test(operations: tuple[tuple[Steps, str, str], ...]) -> ValueTest:
    """Return one test for several operations; equal operations share it, so that fetches can share its results."""
    tests = [(steps, VALUE_TESTS[op].test(json.loads(operand))) for steps, op, operand in operations]
    # A single test of the whole value is the usual case, and needs no search for a field.
    if len(tests) == 1 and not tests[0][0]:
        return tests[0][1]

    def test_all(value: Json) -> bool:
        meter.units += len(tests)
        for steps, test in tests:
            field = find_field(value, steps)
            # A missing field fails every test, even equalsNot: a value that could differ is missing.
            if field is ABSENT or not test(field):
                return False
        return True

    return test_all


def _is_list(operand: str | tuple[str, ...]) -> bool:
    return isinstance(operand, tuple)


def _is_long(test: tuple[str, str | tuple[str, ...]]) -> bool:
    op, operand = test
    return isinstance(operand, tuple) and len(operand) > FEW and PATH_TESTS[op].relation != "equals"


EVERYTHING = Rule()
