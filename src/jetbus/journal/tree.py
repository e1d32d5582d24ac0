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

from jetbus.journal.sieve import CLEARING_EVENTS, PathSieve, value_mask
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
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def _row_by_path(events: Any, which: str, among: Any = None) -> tuple[Any, Any]:
    """The paths and for each its first (min) or last (max) row, of those rows that are among."""
    rows = pa.table({"path": events["path"], "row": _numbers(events.num_rows)})
    if among is not None:
        rows = rows.filter(among)
    found = rows.group_by("path").aggregate([("row", which)])
    return found["path"].combine_chunks(), found[f"row_{which}"].combine_chunks()


def _looked_up(paths: Any, known: tuple[Any, Any]) -> Any:
    """For each path the row known for it, or null."""
    return known[1].take(pc.index_in(paths, value_set=known[0]))


def _after(tree: Any, events: Any) -> Any:
    """The tree after these events, which are in order and do not empty the bus."""
    names = events["event"]
    in_tree = pc.is_in(names, value_set=pa.array(TREE_EVENTS))
    if not pc.all(in_tree).as_py():
        events = events.filter(in_tree)
        names = events["event"]
    if not events.num_rows:
        return tree
    touched, last_row = _row_by_path(events, "max")
    untouched = tree.filter(pc.invert(pc.is_in(tree["path"], value_set=touched)))
    alive = pc.not_equal(names.take(last_row), "remove").combine_chunks()
    paths, last_row = touched.filter(alive), last_row.filter(alive)
    if not len(paths):
        return untouched
    added = _looked_up(paths, _row_by_path(events, "max", pc.equal(names, "add")))
    removed = pc.fill_null(_looked_up(paths, _row_by_path(events, "max", pc.equal(names, "remove"))), -1)
    added = pc.if_else(pc.greater(added, removed), added, pa.scalar(None, pa.int64()))
    before = pc.index_in(paths, value_set=tree["path"].combine_chunks()).cast(pa.int64())
    before = pc.if_else(pc.equal(removed, -1), pc.add(before, events.num_rows), pa.scalar(None, pa.int64()))
    origin = pc.coalesce(added, before)
    if origin.null_count:
        origin = pc.coalesce(origin, _first_seen(events, paths, removed, origin))
    events = events.append_column("created_seq", events["seq"])
    origins = pa.concat_tables([events.select(_ORIGIN), tree.select(_ORIGIN)]).take(origin)
    last = events.select(["value", "ts", "seq"]).take(last_row)
    columns = {"path": paths, **_columns(origins), **_columns(last)}
    told = pa.table([columns[name] for name in TREE.names], schema=TREE)
    return pa.concat_tables([untouched, told]).combine_chunks()


def _columns(table: Any) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _first_seen(events: Any, paths: Any, removed: Any, origin: Any) -> Any:
    """The row from which on a path was there although nobody added it: its first after its last remove."""
    lost = paths.filter(pc.is_null(origin))
    removed_row = removed.take(pc.index_in(events["path"], value_set=paths).combine_chunks())
    of_lost = pc.is_in(events["path"], value_set=lost).combine_chunks()
    later = pc.greater(_numbers(events.num_rows), pc.fill_null(removed_row, -1))
    return _looked_up(paths, _row_by_path(events, "min", pc.and_(of_lost, later)))


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
