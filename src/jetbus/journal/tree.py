"""The tree of a bus, computed from its events: on whole columns, never event by event.

The last event of each path decides. The ``add`` of an element gives its kind, owner and detail; its last ``add`` or
``change`` gives its value. ``remove`` ends an element, ``start`` and ``stop`` of the daemon end all of them. A
``change`` of a path that does not exist counts as its ``add``: the log began in the middle, or a gap has swallowed it.
``describe`` replaces the detail of an element, which has its schema, and nothing else. Values of the ``past`` are no
part of a tree.

A tree is a table with the columns of ``TREE``, one row per element. Building it takes a batch of events at a time:

    tree  +  events of 262,144 rows  -->  for each path: row of its last event, last remove, last add
          -->  drop paths that are removed, keep paths without events, take the columns of the rest by row number

Each distinct path is hashed once per batch; everything else is arithmetic on row numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.effective import LATE
from jetbus.journal.events import CLEARING_EVENTS, TREE_EVENTS
from jetbus.journal.filters import PathFilter, mask_values
from jetbus.rules import Rule

APPLY_ROWS = 1 << 18
"""Events that are collected before they are applied to the tree: a balance of speed and memory."""
APPLY_BYTES = 64 << 20
"""Bytes of events from which on they are applied, however few they are."""

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
        ("source_ts", pa.timestamp("us", "UTC")),
        ("quality", pa.string()),
    ]
)
DIFF = pa.schema([("path", pa.string()), ("what", pa.string()), ("before", pa.string()), ("after", pa.string())])

COLUMNS = ["seq", "ts", "event", "kind", "path", "value", "peer", "detail", "source_ts", "quality"]
"""The columns of events that a tree is built from."""
_LATEST = ["value", "ts", "seq", "source_ts", "quality"]
_ORIGIN = ["kind", "peer", "detail", "created_seq"]
_NO_ROW = pa.nulls(1, pa.int32())[0]
"""Not made by ``pa.scalar``, which imports pandas."""


def make_empty_tree() -> pa.Table:
    """Return a tree without elements."""
    return TREE.empty_table()


class TreeBuilder:
    """Applies events to a tree, in order of seq. Start with None if the previous tree is unknown."""

    def __init__(self, tree: pa.Table | None) -> None:
        self._tree = make_empty_tree() if tree is None else tree
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.known = tree is not None
        """True if the tree is complete: the start was known, or an event has cleared the tree since."""

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add the events of these record batches."""
        for batch in batches:
            self._batches.append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._rows >= APPLY_ROWS or self._bytes >= APPLY_BYTES:
                self._apply_pending()

    def forget(self) -> None:
        """Forget the tree: events are missing from here on, so it is unknown until an event clears it."""
        self._tree, self._batches, self.known = make_empty_tree(), [], False
        self._rows = self._bytes = 0

    def build(self) -> pa.Table:
        """Return the tree after all added events, in no order."""
        self._apply_pending()
        return self._tree

    def _apply_pending(self) -> None:
        if not self._batches:
            return
        events = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0
        events, cleared = _drop_before_clearing(events)
        if cleared:
            self._tree, self.known = make_empty_tree(), True
        self._tree = _apply_descriptions(_apply_events(self._tree, events), events)


def _drop_before_clearing(events: pa.Table) -> tuple[pa.Table, bool]:
    """Return the events after the last one that cleared the tree, and whether there was one."""
    clearing = pc.is_in(events["event"], value_set=pa.array(CLEARING_EVENTS))
    if not pc.any(clearing).as_py():
        return events, False
    last = pc.max(pc.indices_nonzero(clearing)).as_py()
    return events.slice(last + 1), True


def _numbers(count: int) -> pa.Array:
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), count)), 1)


class _RowsByPath:
    """Row numbers of the events of each path, for all paths at once."""

    def __init__(self, events: pa.Table) -> None:
        encoded = events["path"].combine_chunks().dictionary_encode()
        self.paths, self._of = encoded.dictionary, encoded.indices
        self._events = events["event"]

    def last(self, event: str | None = None) -> pa.Array:
        """Return the last row of each path, optionally of one kind of event; null if there is none."""
        return self._last(self._of if event is None else self._where(pc.equal(self._events, event)))

    def first_after(self, rows: pa.Array) -> pa.Array:
        """Return the first row of each path after the given row of that path."""
        # Reversed, the first row is the last one.
        count = len(self._of)
        upwards = _numbers(count)
        later = self._where(pc.greater(upwards, rows.take(self._of)))
        return pc.subtract(count - 1, self._last(later.take(pc.subtract(count - 1, upwards))))

    def _where(self, mask: pa.Array) -> pa.Array:
        return pc.if_else(mask, self._of, _NO_ROW)

    def _last(self, of: pa.Array) -> pa.Array:
        of = of.combine_chunks() if isinstance(of, pa.ChunkedArray) else of
        # A scatter: position ``of[row]`` gets ``row``. Where several rows have the same path, the last one wins.
        return pc.inverse_permutation(of, max_index=len(self.paths) - 1)


def _apply_events(tree: pa.Table, events: pa.Table) -> pa.Table:
    """Return the tree after these events, which are in order and do not clear the tree."""
    in_tree = pc.is_in(events["event"], value_set=pa.array(TREE_EVENTS))
    if not pc.all(in_tree).as_py():
        events = events.filter(in_tree)
    if not events.num_rows:
        return tree
    # From here on, an array has one item per distinct path of the events, which is a row number or null.
    rows = _RowsByPath(events)
    untouched = tree.filter(pc.invert(pc.is_in(tree["path"], value_set=rows.paths)))
    last, removed = rows.last(), pc.fill_null(rows.last("remove"), -1)
    alive = pc.greater(last, removed)
    # The origin of an element is its last add or, if it has none among the events, its row in the previous tree.
    added = rows.last("add")
    added = pc.if_else(pc.greater(added, removed), added, _NO_ROW)
    before = pc.index_in(rows.paths, value_set=tree["path"].combine_chunks())
    # Origins are taken from events and tree, one after the other, so rows of the tree come after those of the events.
    before = pc.if_else(pc.equal(removed, -1), pc.add(before, events.num_rows), _NO_ROW)
    origin = pc.coalesce(added, before)
    # A change without an add or an element in the tree counts as an add.
    if pc.any(pc.and_(alive, pc.is_null(origin))).as_py():
        origin = pc.coalesce(origin, rows.first_after(removed))
    return pa.concat_tables(
        [untouched, _build_elements(tree, events, rows.paths, alive, last, origin)]
    ).combine_chunks()


def _build_elements(
    tree: pa.Table, events: pa.Table, paths: pa.Array, alive: pa.Array, last: pa.Array, origin: pa.Array
) -> pa.Table:
    """Return the living elements of these paths, from the rows of their last event and of their origin."""
    events = events.append_column("created_seq", events["seq"])
    origins = pa.concat_tables([events.select(_ORIGIN), tree.select(_ORIGIN)]).take(origin.filter(alive))
    latest = events.select(_LATEST).take(last.filter(alive))
    columns = {"path": paths.filter(alive), **_columns(origins), **_columns(latest)}
    return pa.table([columns[name] for name in TREE.names], schema=TREE)


def _apply_descriptions(tree: pa.Table, events: pa.Table) -> pa.Table:
    """Return a tree with the last detail that a ``describe`` has given each element since it was added."""
    described = events.filter(pc.equal(events["event"], "describe"))
    if not described.num_rows or not tree.num_rows:
        return tree
    rows = _RowsByPath(described)
    at = pc.index_in(tree["path"].combine_chunks(), value_set=rows.paths)
    last = described.select(["seq", "detail"]).take(rows.last().take(at))
    # A description of an element that was removed and added again is older than the element.
    newer = pc.fill_null(pc.greater(last["seq"], tree["created_seq"]), False)
    detail = pc.if_else(newer, last["detail"], tree["detail"])
    return tree.set_column(tree.schema.get_field_index("detail"), TREE.field("detail"), detail)


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def sort_by_creation(tree: pa.Table) -> pa.Table:
    """Return a tree in order of creation."""
    return tree.sort_by("created_seq").combine_chunks()


def select_matching(tree: pa.Table, rule: Rule | None) -> pa.Table:
    """Return the elements that match a rule by path and by value."""
    if rule is None or not tree.num_rows:
        return tree
    tree = select_matching_paths(tree, PathFilter(rule))
    if rule.matches_value is not None:
        tree = tree.filter(mask_values(rule, tree["value"]))
    return tree


def select_matching_paths(tree: pa.Table, paths: PathFilter | None) -> pa.Table:
    """Return the elements with a path that matches."""
    if paths is None or not tree.num_rows:
        return tree
    return tree.filter(paths.mask(tree["path"].combine_chunks()))


def correct_tree(tree: pa.Table, late: pa.Table, ends: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a tree with the latest late value of each path, and the column ``late``.

    ``ends`` are the removes, starts and stops after which a state without a later value does not exist.
    """
    at = pc.index_in(tree["path"].combine_chunks(), value_set=late["path"].combine_chunks())
    found = late.take(at)
    # Times of one owner can be compared, however wrong its clock is.
    newer = pc.greater_equal(found["source_ts"], pc.coalesce(tree["source_ts"], tree["ts"]))
    newer = pc.fill_null(pc.and_(newer, pc.equal(tree["kind"], "state")), False)
    found = found.set_column(found.schema.get_field_index("ts"), "ts", found["source_ts"])
    corrected = tree.append_column(LATE, newer)
    for name in ("value", "peer", "ts", "seq", "source_ts", "quality"):
        column = pc.if_else(newer, found[name], tree[name])
        corrected = corrected.set_column(tree.schema.get_field_index(name), tree.schema.field(name), column)
    known, latest = set(tree["path"].to_pylist()), {row["path"]: row for row in late.to_pylist()}
    # Of a state that ends in a gap, nothing is known.
    missing = {path: row for path, row in latest.items() if path not in known and row["value"] is not None}
    for end in ends:
        gone = missing if end["path"] is None else missing.keys() & {end["path"]}
        for path in [path for path in gone if missing[path]["source_ts"] < end["ts"]]:
            del missing[path]
    rows = [{**row, "ts": row["source_ts"], "created_seq": row["seq"], LATE.name: True} for row in missing.values()]
    return pa.concat_tables([corrected, pa.Table.from_pylist(rows, corrected.schema)]).combine_chunks()


def diff_trees(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return the differences between two trees with the columns of ``DIFF``, in order of path.

    An element that was removed and added again in between counts as changed if its value differs.
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
