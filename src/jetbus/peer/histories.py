"""The past over the bus: histories and trees from the journal of the daemon, as Arrow tables.

The daemon answers in pages, which are read one after the other and joined. The tables are those of ``jetbus.journal``,
with the values in columns of their types, too. pyarrow is imported on first use: a peer that does not look back needs
none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jetbus.errors import JetError, NotFound
from jetbus.json_types import JsonObject
from jetbus.rules import Rule, write_rule

if TYPE_CHECKING:
    import pyarrow as pa

Call = Callable[..., Awaitable[Any]]
"""Calls a method of the bus, as ``PeerAsync.call`` does."""

_NODE = "$jet/journal"


async def read_history(call: Call, path: str, since: str | int | None, until: str | int | None) -> pa.Table:
    """Return the values of one path over time as an Arrow table."""
    return await _read_pages(call, "history", "seq", {"path": path, "since": since, "until": until})


async def read_tree(call: Call, instant: str | int | None, rule: Rule) -> pa.Table:
    """Return the tree at an instant, by default now, as an Arrow table."""
    params, is_complete = write_rule(rule)
    table = await _read_pages(call, "as_of", "offset", {"rule": params or None, **await _pin_instant(call, instant)})
    if is_complete:
        return table
    from jetbus.journal.tree import select_matching

    return select_matching(table, rule)  # the wire has no word for some rules; what is left of them is tested here


async def _pin_instant(call: Call, instant: str | int | None) -> JsonObject:
    """Return the parameters for an instant; relative ones become a seq, so that all pages mean the same instant."""
    if instant is None or instant == "now":
        return {"seq": (await _ask(call, "offsets", {}))["last"]}
    if not isinstance(instant, str) or not instant.startswith("-"):
        return {"instant": instant}
    table, following = await _read_page(call, "range", {"since": instant, "columns": ["seq"], "limit": 1})
    return {"seq": int(table["seq"][0].as_py() if table.num_rows else following or 1) - 1}


async def _read_pages(call: Call, method: str, position: str, params: JsonObject) -> pa.Table:
    table, following = await _read_page(call, method, params)
    # The metadata says where the next page begins, which means nothing for the whole table.
    parts = [table.replace_schema_metadata(None)]
    while following is not None:
        table, following = await _read_page(call, method, {**params, position: following})
        parts.append(table.replace_schema_metadata(None))
    import pyarrow as pa

    from jetbus.journal.typed import add_typed_columns

    return add_typed_columns(pa.concat_tables(parts).combine_chunks())


async def _read_page(call: Call, method: str, params: JsonObject) -> tuple[pa.Table, int | None]:
    page = await _ask(call, method, params)
    try:
        from jetbus.journal.pages import read_page
    except ModuleNotFoundError as problem:
        if problem.name != "pyarrow":
            raise
        from jetbus.journal.errors import NEEDS_PYARROW

        raise JetError(NEEDS_PYARROW) from None
    return read_page(page)


async def _ask(call: Call, method: str, params: JsonObject) -> Any:
    path = f"{_NODE}/{method}"
    try:
        return await call(path, **{name: value for name, value in params.items() if value is not None})
    except NotFound:
        raise NotFound(path, "the daemon keeps no journal; start it with `jetd --journal DIR`") from None
