"""The past over the bus: histories and trees from the journal of the daemon, as Arrow tables.

The questions are those of ``jetbus.journal.source``, asked of the daemon's methods. The tables are those of
``jetbus.journal``, with the values in columns of their types, too. pyarrow is imported on first use: a peer that does
not look back needs none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from jetbus.journal.instants import Instant
from jetbus.journal.source import (
    HISTORY_COLUMNS,
    AskedAt,
    JournalRequest,
    Query,
    Result,
    run_query_async,
)
from jetbus.journal.source import read_history as ask_history
from jetbus.journal.source import read_tree as ask_tree
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Call = Callable[..., Awaitable[Any]]
"""Calls a method of the bus, as ``PeerAsync.call`` does."""


async def read_history(call: Call, path: str, since: Instant | None, until: Instant | None) -> pa.Table:
    """Return the values of one path over time as an Arrow table."""
    rows = await _run(call, ask_history(AskedAt(), make_rule(equals=path), since, until))
    return _add_types(rows.select([name for name in (*HISTORY_COLUMNS, "unit") if name != "path"]))


async def read_tree(call: Call, instant: Instant | None, rule: Rule, *, corrected: bool = False) -> pa.Table:
    """Return the tree at an instant, by default now, as an Arrow table."""
    return _add_types(await _run(call, ask_tree(AskedAt(), instant, rule, corrected=corrected)))


async def read_frame(
    call: Call,
    paths: str | Rule | Sequence[str],
    since: Instant | None,
    until: Instant | None,
    every: str | float,
) -> pd.DataFrame:
    """Return several states side by side, as a frame of pandas."""
    from jetbus.journal.pandas_frames import import_pandas, make_frame
    from jetbus.journal.pandas_frames import read_frame as ask_frame

    asked = AskedAt()
    import_pandas()  # before anything is read
    return make_frame(await _run(call, ask_frame(asked, paths, since, until, every)))


def _add_types(table: pa.Table) -> pa.Table:
    from jetbus.journal.pandas_frames import describe_for_pandas
    from jetbus.journal.typed import add_typed_columns

    return describe_for_pandas(add_typed_columns(table))


def _run(call: Call, query: Query[Result]) -> Awaitable[Result]:
    async def ask(request: JournalRequest) -> Any:
        return await call(request.path, **request.params)

    return run_query_async(query, ask)
