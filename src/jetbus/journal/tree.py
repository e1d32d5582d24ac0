"""The tree of a bus, told from its events: whole columns at a time, never event by event.

What counts is the last event of each path. Its ``add`` says kind, owner and detail; the last ``add`` or ``change`` says
the value. ``remove`` ends an element, ``start`` and ``stop`` of the daemon end them all. A ``change`` of a path that is
not there counts as its ``add``: the log began in the middle, or a gap has swallowed it.

A tree is a table of ``TREE`` columns, one row per element; ``in_order`` puts them in order of creation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.segment import CLEARING_EVENTS
from jetbus.journal.sieve import PathSieve, value_mask
from jetbus.rules import Rule

TREE_EVENTS = ("add", "change", "remove")

FOLD_ROWS = 1 << 18
"""Events that are gathered before they are folded into the tree: enough to be quick, few enough to stay small."""

TREE = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("value", pa.string()),
        ("peer", pa.string()),
        ("detail", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("seq", pa.int64()),
        ("created_seq", pa.int64()),
    ]
)
DIFF = pa.schema([("path", pa.string()), ("what", pa.string()), ("before", pa.string()), ("after", pa.string())])

COLUMNS = ["seq", "ts", "event", "kind", "path", "value", "peer", "detail"]
"""The columns of events that a tree is made from."""
_ORIGIN = ["kind", "peer", "detail", "created_seq"]
_NO_ROW = pa.nulls(1, pa.int32())[0]
"""Not by ``pa.scalar``, which loads pandas."""


def empty() -> Any:
    """The tree of a bus that nothing is on."""
    return TREE.empty_table()


class Replay:
    """A tree that events are fed to in order of seq; None as the start: what was there before is not known."""

    def __init__(self, tree: Any | None) -> None:
        self._tree = empty() if tree is None else tree
        self._batches: list[Any] = []
        self._rows = 0
        self.known = tree is not None
        """Whether the tree is certain: the start was known, or the bus was empty at some event since."""

    def feed(self, batches: Iterable[Any]) -> None:
        """Go on with these record batches."""
        for batch in batches:
            self._batches.append(batch)
            self._rows += batch.num_rows
            if self._rows >= FOLD_ROWS:
                self._fold()

    def tree(self) -> Any:
        """The tree after all that was fed, in no order."""
        self._fold()
        return self._tree

    def _fold(self) -> None:
        if not self._batches:
            return
        events = pa.Table.from_batches(self._batches)
        self._batches, self._rows = [], 0
        events, cleared = _since_clear(events)
        if cleared:
            self._tree, self.known = empty(), True
        self._tree = _after(self._tree, events)


def _since_clear(events: Any) -> tuple[Any, bool]:
    """The events after the last that emptied the bus, and whether there was one."""
    clearing = pc.is_in(events["event"], value_set=pa.array(CLEARING_EVENTS))
    if not pc.any(clearing).as_py():
        return events, False
    last = pc.max(pc.indices_nonzero(clearing)).as_py()
    return events.slice(last + 1), True


def _numbers(count: int) -> Any:
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), count)), 1)


class _Rows:
    """Where the events of each path stand, asked for all paths at once. Paths are hashed once; all else is numbers."""

    def __init__(self, events: Any) -> None:
        encoded = events["path"].combine_chunks().dictionary_encode()
        self.paths, self._of = encoded.dictionary, encoded.indices
        self._events = events["event"]

    def last(self, event: str | None = None) -> Any:
        """For each path its last row, of this event if one is named; null if there is none."""
        return self._last(self._of if event is None else self._where(pc.equal(self._events, event)))

    def first_after(self, rows: Any) -> Any:
        """For each path its first row after the one that is given for it."""
        count = len(self._of)
        upwards = _numbers(count)
        later = self._where(pc.greater(upwards, rows.take(self._of)))
        return pc.subtract(count - 1, self._last(later.take(pc.subtract(count - 1, upwards))))

    def _where(self, mask: Any) -> Any:
        return pc.if_else(mask, self._of, _NO_ROW)

    def _last(self, of: Any) -> Any:
        of = of.combine_chunks() if isinstance(of, pa.ChunkedArray) else of
        return pc.inverse_permutation(of, max_index=len(self.paths) - 1)  # of several rows it gives the last


def _after(tree: Any, events: Any) -> Any:
    """The tree after these events, which are in order and do not empty the bus."""
    in_tree = pc.is_in(events["event"], value_set=pa.array(TREE_EVENTS))
    if not pc.all(in_tree).as_py():
        events = events.filter(in_tree)
    if not events.num_rows:
        return tree
    rows = _Rows(events)
    untouched = tree.filter(pc.invert(pc.is_in(tree["path"], value_set=rows.paths)))
    last, removed = rows.last(), pc.fill_null(rows.last("remove"), -1)
    alive = pc.greater(last, removed)
    added = rows.last("add")
    added = pc.if_else(pc.greater(added, removed), added, _NO_ROW)
    before = pc.index_in(rows.paths, value_set=tree["path"].combine_chunks())
    before = pc.if_else(pc.equal(removed, -1), pc.add(before, events.num_rows), _NO_ROW)  # the tree's come after them
    origin = pc.coalesce(added, before)
    if pc.any(pc.and_(alive, pc.is_null(origin))).as_py():  # a path was there although nobody added it
        origin = pc.coalesce(origin, rows.first_after(removed))
    return pa.concat_tables([untouched, _told(tree, events, rows.paths, alive, last, origin)]).combine_chunks()


def _told(tree: Any, events: Any, paths: Any, alive: Any, last: Any, origin: Any) -> Any:
    """The elements of these paths that are alive, from the rows of their last event and of their origin."""
    events = events.append_column("created_seq", events["seq"])
    origins = pa.concat_tables([events.select(_ORIGIN), tree.select(_ORIGIN)]).take(origin.filter(alive))
    latest = events.select(["value", "ts", "seq"]).take(last.filter(alive))
    columns = {"path": paths.filter(alive), **_columns(origins), **_columns(latest)}
    return pa.table([columns[name] for name in TREE.names], schema=TREE)


def _columns(table: Any) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


def in_order(tree: Any) -> Any:
    """The tree in order of creation."""
    return tree.sort_by("created_seq").combine_chunks()


def matching(tree: Any, rule: Rule | None) -> Any:
    """The elements that a rule matches, by path and by value."""
    if rule is None or not tree.num_rows:
        return tree
    tree = matching_paths(tree, PathSieve(rule))
    if rule.matches_value is not None:
        tree = tree.filter(value_mask(rule, tree["value"]))
    return tree


def matching_paths(tree: Any, paths: PathSieve | None) -> Any:
    """The elements whose path matches."""
    if paths is None or not tree.num_rows:
        return tree
    return tree.filter(paths.mask(tree["path"].combine_chunks()))


def difference(before: Any, after: Any) -> Any:
    """What is added, removed and changed from one tree to another, as ``DIFF`` columns in order of path.

    An element that was removed and added again in between is changed if its value is another.
    """
    both = before.select(["path", "value"]).join(
        after.select(["path", "value"]), keys="path", join_type="full outer", right_suffix="_after", coalesce_keys=False
    )
    left, right = both["path"], both["path_after"]
    same = pc.fill_null(pc.equal(both["value"], both["value_after"]), False)
    no_value = pc.and_(pc.is_null(both["value"]), pc.is_null(both["value_after"]))
    there = pc.and_(pc.is_valid(left), pc.is_valid(right))
    what = pc.case_when(
        pc.make_struct(pc.is_null(left), pc.is_null(right), pc.and_(there, pc.invert(pc.or_(same, no_value)))),
        "added",
        "removed",
        "changed",
    )
    found = pa.table([pc.coalesce(left, right), what, both["value"], both["value_after"]], schema=DIFF)
    return found.filter(pc.is_valid(what)).sort_by("path").combine_chunks()
