"""Which events a reader wants, tested on whole columns.

A rule is turned into column tests as far as there are any; what is left of it is asked once per distinct path, and
values are decoded only where the path matches, once per distinct value. With a rule, only events of a path can match:
connections, starts and gaps have none. As on the bus, the daemon's own states match only a rule that starts with
``$``, and a value test never holds for what has no value, such as a method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jetbus.paths import DAEMON_NODE, is_daemons
from jetbus.rules import Rule, parse_rule
from jetbus.rules import rule as make_rule

RuleLike = str | Rule | Mapping[str, Any]
"""A rule as text, as itself, or as the keywords of ``jetbus.rules.rule``."""

VERDICTS_MAX = 1_000_000
"""Distinct paths whose verdict is remembered, at the most; beyond, it is asked again."""


def as_rule(given: RuleLike | None) -> Rule | None:
    """The rule that was given in any of its forms.

    >>> as_rule({"starts_with": "plant/"}) == as_rule("plant/**")
    True
    """
    if given is None or isinstance(given, Rule):
        return given
    return parse_rule(given) if isinstance(given, str) else make_rule(**given)


def _all_of(tests: Iterable[Any]) -> Any:
    return reduce(pc.and_, tests)


_COLUMN_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "equals": pc.equal,
    "equalsNot": pc.not_equal,
    "contains": lambda paths, part: pc.match_substring(paths, pattern=part),
    "containsNot": lambda paths, part: pc.invert(pc.match_substring(paths, pattern=part)),
    "startsWith": lambda paths, start: pc.starts_with(paths, pattern=start),
    "startsNotWith": lambda paths, start: pc.invert(pc.starts_with(paths, pattern=start)),
    "endsWith": lambda paths, end: pc.ends_with(paths, pattern=end),
    "endsNotWith": lambda paths, end: pc.invert(pc.ends_with(paths, pattern=end)),
    "equalsOneOf": lambda paths, some: pc.is_in(paths, value_set=pa.array(some, pa.string())),
}
"""The operators that Arrow can test on a column; the others are asked per distinct path."""


def _by_dictionary(column: Any, test: Callable[[Any], Any]) -> Any:
    """The test on each distinct text, where a column has a dictionary of them."""
    if not pa.types.is_dictionary(column.type):
        return test(column)
    return pc.fill_null(test(column.dictionary).take(column.indices), False)


def is_one_of(column: Any, texts: Sequence[str]) -> Any:
    """Which rows of a column of texts have one of these."""
    return _by_dictionary(column, lambda some: pc.is_in(some, value_set=pa.array(texts, pa.string())))


class PathSieve:
    """The path tests of a rule for columns of paths."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        told = [] if rule.case_insensitive else [test for test in rule.path if test[0] in _COLUMN_TESTS]
        self._columns = [(_COLUMN_TESTS[op], operand) for op, operand in told]
        self._rest = len(told) < len(rule.path) or rule.glob is not None or bool(rule.lua_match or rule.lua_unmatch)
        self._verdicts: dict[str, bool] = {}

    def matches(self, path: str) -> bool:
        """The rule's word on one path, as the bus gives it."""
        return self._rule.matches_path(path) and (self._rule.sees_daemon or not is_daemons(path))

    def mask(self, paths: Any) -> Any:
        """Which of the paths match, without nulls; no path matches nothing."""
        return _by_dictionary(paths, self._mask)

    def _mask(self, paths: Any) -> Any:
        mask = _all_of([pc.is_valid(paths), *(test(paths, operand) for test, operand in self._columns)])
        mask = pc.fill_null(mask, False)
        if mask.true_count == 0:
            return mask
        if self._rest:
            return pc.and_(mask, self._asked(paths, mask))
        if not self._rule.sees_daemon:
            own = pc.starts_with(paths, pattern=DAEMON_NODE)
            if own.true_count:
                return pc.and_(mask, self._asked(paths, mask))
        return mask

    def _asked(self, paths: Any, among: Any) -> Any:
        """The rule asked for each distinct path that is still in."""
        verdicts = self._verdicts
        if len(verdicts) > VERDICTS_MAX:
            verdicts.clear()
        matching = []
        for path in paths.filter(among).unique().to_pylist():
            verdict = verdicts.get(path)
            if verdict is None:
                verdict = verdicts[path] = self.matches(path)
            if verdict:
                matching.append(path)
        return pc.is_in(paths, value_set=pa.array(matching, pa.string()))


def decoded(text: str) -> Any:
    """A value from its JSON text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def value_mask(rule: Rule, values: Any) -> Any:
    """Which of the values the rule's value tests hold for."""
    test = rule.matches_value
    assert test is not None  # noqa: S101 - asked only for rules that look at values

    def of_each(texts: Any) -> Any:
        distinct = [text for text in texts.unique().to_pylist() if text is not None]
        return pc.is_in(texts, value_set=pa.array([text for text in distinct if test(decoded(text))], pa.string()))

    return _by_dictionary(values, of_each)


@dataclass(frozen=True)
class Range:
    """A stretch of the log, in seqs and in microseconds; from is in it, until is not."""

    seq: int = 0
    seq_until: int = 1 << 62
    since_us: int = -(1 << 62)
    until_us: int = 1 << 62

    def touches(self, first: int, last: int, ts_min_us: int, ts_max_us: int) -> bool:
        """Whether events of a piece of the log can be in it."""
        return first < self.seq_until and last >= self.seq and ts_min_us < self.until_us and ts_max_us >= self.since_us

    def holds(self, first: int, last: int, ts_min_us: int, ts_max_us: int) -> bool:
        """Whether all events of a piece of the log are in it."""
        return first >= self.seq and last < self.seq_until and ts_min_us >= self.since_us and ts_max_us < self.until_us


EVERYTHING = Range()


class Sieve:
    """What a reader wants of each batch: a rule, kinds of events and a stretch of the log."""

    def __init__(
        self,
        rule: Rule | None = None,
        events: Iterable[str] | None = None,
        within: Range | None = None,
        *,
        always: Iterable[str] = (),
        only_for_trees: bool = False,
    ) -> None:
        self.rule = rule
        self.only_for_trees = only_for_trees
        """Whether events that no later tree tells of may be left out."""
        self.always = tuple(always)
        """Kinds of events that are wanted whatever the rule says, such as the start of the daemon."""
        self.within = within or EVERYTHING
        self.paths = None if rule is None else PathSieve(rule)
        self.events = None if events is None else tuple(events)
        self.looks_at_values = rule is not None and rule.matches_value is not None

    def moved(self, within: Range) -> Sieve:
        """The same sieve for another stretch of the log."""
        if within == self.within:
            return self
        other = copy(self)
        other.within = within
        return other

    @property
    def first_columns(self) -> list[str]:
        """The columns that tell most: a batch in which they match nothing is not decoded further."""
        return [
            *(["event"] if self.events is not None or self.always else []),
            *(["path"] if self.paths is not None else []),
        ]

    @property
    def columns(self) -> list[str]:
        """All columns that are needed to decide."""
        ends = ["seq", "ts"] if self.within != EVERYTHING else []
        return [*ends, *self.first_columns, *(["value"] if self.looks_at_values else [])]

    def first_mask(self, batch: Any) -> Any:
        """What the first columns say of each row; None: nothing is said against any."""
        tests = []
        if self.events is not None:
            tests.append(is_one_of(batch.column("event"), self.events))
        if self.paths is not None:
            mask = self.paths.mask(batch.column("path"))
            if self.always:
                mask = pc.or_(mask, is_one_of(batch.column("event"), self.always))
            tests.append(mask)
        return _all_of(tests) if tests else None

    def keep(self, batch: Any, mask: Any = None) -> Any:
        """The wanted rows of a record batch that has ``columns``, given what ``first_mask`` said of it."""
        tests = self._range_tests(batch)
        if mask is not None:
            tests.append(mask)
        kept = _filtered(batch, _all_of(tests)) if tests else batch
        if self.looks_at_values and kept.num_rows and self.rule is not None:
            kept = _filtered(kept, value_mask(self.rule, kept.column("value")))
        return kept

    def _range_tests(self, batch: Any) -> list[Any]:
        within, tests = self.within, []
        if batch.num_rows == 0 or within == EVERYTHING:
            return []
        seq, ts = batch.column("seq"), batch.column("ts")
        ends = pc.min_max(seq).as_py()
        if ends["min"] < within.seq:
            tests.append(pc.greater_equal(seq, within.seq))
        if ends["max"] >= within.seq_until:
            tests.append(pc.less(seq, within.seq_until))
        ts = ts.cast(pa.int64())
        ends = pc.min_max(ts).as_py()
        if ends["min"] < within.since_us:
            tests.append(pc.greater_equal(ts, within.since_us))
        if ends["max"] >= within.until_us:
            tests.append(pc.less(ts, within.until_us))
        return tests


def _filtered(batch: Any, mask: Any) -> Any:
    return batch if mask.true_count == batch.num_rows else batch.filter(mask)
