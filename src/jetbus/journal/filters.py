"""Filters: which events a reader wants, decided on whole columns.

A rule is translated into column tests as far as Arrow has them; the rest of it is evaluated once per distinct path.
Values are decoded only in rows with a path that matches, once per distinct value. A filter with a rule matches only
events that have a path: connections, starts and gaps have none. As on the bus, the daemon's own states match only a
rule that starts with ``$``, and a value test never holds for an element without a value, such as a method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jetbus.json_types import Json
from jetbus.paths import DAEMON_NODE, is_daemons
from jetbus.rules import Rule, parse_rule
from jetbus.rules import rule as make_rule

RuleLike = str | Rule | Mapping[str, Json]
"""A rule as text, as a ``Rule``, or as the keywords of ``jetbus.rules.rule``."""

VERDICTS_MAX = 1_000_000
"""Limit of distinct paths with a cached match; beyond that the cache starts again."""


def to_rule(rule: RuleLike | None) -> Rule | None:
    """Return a rule given in any of its forms as a ``Rule``.

    >>> to_rule({"starts_with": "plant/"}) == to_rule("plant/**")
    True
    """
    if rule is None or isinstance(rule, Rule):
        return rule
    return parse_rule(rule) if isinstance(rule, str) else make_rule(**rule)


def _combine(tests: Iterable[pa.BooleanArray]) -> pa.BooleanArray:
    return reduce(pc.and_, tests)


_COLUMN_TESTS: dict[str, Callable[[pa.Array, Any], pa.BooleanArray]] = {
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
"""The operators that Arrow can test on a column; others are evaluated per distinct path."""


def _test_distinct(column: pa.Array, test: Callable[[pa.Array], pa.BooleanArray]) -> pa.BooleanArray:
    """Apply a test to a column, once per distinct text if the column is dictionary-encoded."""
    # Columns from Parquet are dictionaries, columns from segments are plain.
    if not pa.types.is_dictionary(column.type):
        return test(column)
    return pc.fill_null(test(column.dictionary).take(column.indices), False)


def match_any(column: pa.Array, texts: Sequence[str]) -> pa.BooleanArray:
    """Return a mask of the rows that have one of these texts."""
    return _test_distinct(column, lambda some: pc.is_in(some, value_set=pa.array(texts, pa.string())))


class PathFilter:
    """The path tests of a rule, for whole columns of paths."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        tests = [] if rule.case_insensitive else [test for test in rule.path if test[0] in _COLUMN_TESTS]
        self._columns = [(_COLUMN_TESTS[op], operand) for op, operand in tests]
        self._rest = len(tests) < len(rule.path) or rule.glob is not None or bool(rule.lua_match or rule.lua_unmatch)
        self._verdicts: dict[str, bool] = {}

    def matches(self, path: str) -> bool:
        """Return whether the rule matches one path, as on the bus."""
        return self._rule.matches_path(path) and (self._rule.sees_daemon or not is_daemons(path))

    def mask(self, paths: pa.Array) -> pa.BooleanArray:
        """Return a mask of the matching paths, without nulls; a missing path never matches."""
        return _test_distinct(paths, self._mask)

    def _mask(self, paths: pa.Array) -> pa.BooleanArray:
        mask = _combine([pc.is_valid(paths), *(test(paths, operand) for test, operand in self._columns)])
        mask = pc.fill_null(mask, False)
        if mask.true_count == 0:
            return mask
        if self._rest:
            return pc.and_(mask, self._ask_rule(paths, mask))
        # Column tests know nothing of the daemon's states; the rule is asked only if there are any.
        if not self._rule.sees_daemon:
            own = pc.starts_with(paths, pattern=DAEMON_NODE)
            if own.true_count:
                return pc.and_(mask, self._ask_rule(paths, mask))
        return mask

    def _ask_rule(self, paths: pa.Array, among: pa.BooleanArray) -> pa.BooleanArray:
        """Return a mask by evaluating the rule for each distinct path among the selected rows."""
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


def decode_value(text: str) -> Json:
    """Return a value from its JSON text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # the standard library also accepts NaN and very large numbers
        return json.loads(text)


def mask_values(rule: Rule, values: pa.Array) -> pa.BooleanArray:
    """Return a mask of the values that pass the rule's value tests."""
    test = rule.matches_value
    assert test is not None  # noqa: S101 - called only for rules with value tests

    def test_each(texts: pa.Array) -> pa.BooleanArray:
        distinct = [text for text in texts.unique().to_pylist() if text is not None]
        return pc.is_in(texts, value_set=pa.array([text for text in distinct if test(decode_value(text))], pa.string()))

    return _test_distinct(values, test_each)


class Instants(Protocol):
    """First and last instants of a piece of the log: of its events, and of its values of the past."""

    @property
    def ts_min_us(self) -> int: ...
    @property
    def ts_max_us(self) -> int: ...
    @property
    def late_min_us(self) -> int: ...
    @property
    def late_max_us(self) -> int: ...


@dataclass(frozen=True)
class LogRange:
    """A part of the log by seqs and by instants; the starts are included, the ends are not."""

    seq: int = 0
    seq_until: int = 1 << 62
    since_us: int = -(1 << 62)
    until_us: int = 1 << 62
    is_late: bool = False
    """True if the instants are those that owners gave their values of the past, and only these are wanted."""

    def touches(self, first: int, last: int, instants: Instants) -> bool:
        """Return whether a piece of the log can have events in this range."""
        first_us, last_us = self.select_instants(instants)
        return first < self.seq_until and last >= self.seq and first_us < self.until_us and last_us >= self.since_us

    def holds(self, first: int, last: int, instants: Instants) -> bool:
        """Return whether all events of a piece of the log are in this range."""
        first_us, last_us = self.select_instants(instants)
        return first >= self.seq and last < self.seq_until and first_us >= self.since_us and last_us < self.until_us

    def select_instants(self, instants: Instants) -> tuple[int, int]:
        """Return the first and the last of the instants that are compared with this range."""
        if self.is_late:
            return instants.late_min_us, instants.late_max_us
        return instants.ts_min_us, instants.ts_max_us


EVERYTHING = LogRange()


class EventFilter:
    """The events a reader wants: by rule, by kind of event and by range."""

    def __init__(
        self,
        rule: Rule | None = None,
        events: Iterable[str] | None = None,
        within: LogRange | None = None,
        *,
        always: Iterable[str] = (),
        for_trees: bool = False,
    ) -> None:
        self.rule = rule
        self.for_trees = for_trees
        """True if events that cannot affect a later tree may be left out."""
        self.always = tuple(always)
        """Kinds of events that are wanted even if the rule does not match, such as the start of the daemon."""
        self.within = within or EVERYTHING
        self.paths = None if rule is None else PathFilter(rule)
        self.events = None if events is None else tuple(events)
        self.looks_at_values = rule is not None and rule.matches_value is not None

    def with_range(self, within: LogRange) -> EventFilter:
        """Return the same filter for another range."""
        if within == self.within:
            return self
        other = copy(self)
        other.within = within
        return other

    @property
    def first_columns(self) -> list[str]:
        """The most selective columns: if nothing in them matches, the rest of a batch is not decoded."""
        return [
            *(["event"] if self.events is not None or self.always else []),
            *(["path"] if self.paths is not None else []),
        ]

    @property
    def _time_column(self) -> str:
        return "source_ts" if self.within.is_late else "ts"

    @property
    def columns(self) -> list[str]:
        """All columns that the filter needs."""
        ends = ["seq", self._time_column] if self.within != EVERYTHING else []
        return [*ends, *self.first_columns, *(["value"] if self.looks_at_values else [])]

    def mask_by_first_columns(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return a mask of the rows that match by the first columns; None if all of them do."""
        tests = []
        if self.events is not None:
            tests.append(match_any(batch.column("event"), self.events))
        if self.paths is not None:
            mask = self.paths.mask(batch.column("path"))
            if self.always:
                mask = pc.or_(mask, match_any(batch.column("event"), self.always))
            tests.append(mask)
        return _combine(tests) if tests else None

    def select_rows(self, batch: pa.RecordBatch, mask: pa.BooleanArray | None = None) -> pa.RecordBatch:
        """Return the wanted rows of a batch that has ``columns``, given its mask by the first columns."""
        tests = self._range_tests(batch)
        if mask is not None:
            tests.append(mask)
        selected = _filter_rows(batch, _combine(tests)) if tests else batch
        if self.looks_at_values and selected.num_rows and self.rule is not None:
            passed = mask_values(self.rule, selected.column("value"))
            if self.always:
                passed = pc.or_(passed, match_any(selected.column("event"), self.always))
            selected = _filter_rows(selected, passed)
        return selected

    def _range_tests(self, batch: pa.RecordBatch) -> list[pa.BooleanArray]:
        within, tests = self.within, []
        if batch.num_rows == 0 or within == EVERYTHING:
            return []
        # Most batches lie within the range, and comparing their ends is cheaper than masking every row.
        if batch.schema.get_field_index(self._time_column) < 0:  # a file without any values of the past
            return [pa.nulls(batch.num_rows, pa.bool_()).fill_null(False)]
        seq, ts = batch.column("seq"), batch.column(self._time_column)
        ends = pc.min_max(seq).as_py()
        if ends["min"] < within.seq:
            tests.append(pc.greater_equal(seq, within.seq))
        if ends["max"] >= within.seq_until:
            tests.append(pc.less(seq, within.seq_until))
        ts = ts.cast(pa.int64())
        ends = pc.min_max(ts).as_py()
        if ends["min"] is None or ends["min"] < within.since_us:
            tests.append(pc.fill_null(pc.greater_equal(ts, within.since_us), False))
        if ends["max"] is None or ends["max"] >= within.until_us:
            tests.append(pc.fill_null(pc.less(ts, within.until_us), False))
        return tests


def select_events(
    batches: Iterable[pa.RecordBatch], rule: Rule, always: Iterable[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the events that match a rule or are of the kinds ``always``, given event, path and value."""
    wanted = EventFilter(rule, always=always)
    for batch in batches:
        yield wanted.select_rows(batch, wanted.mask_by_first_columns(batch))


def _filter_rows(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return batch if mask.true_count == batch.num_rows else batch.filter(mask)
