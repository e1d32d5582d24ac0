"""Set and call requests in Arrow and numpy: counted per minute, path and caller.

Requests of a minute that is not over are carried one by one, as open rows of their table with what is known of each:
whether it failed, and how long it took. Percentiles are exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from jetbus.spark.clock import Clock
from jetbus.spark.files import OPEN
from jetbus.spark.lines import NONE, Ints, ints, keys_of, places_of, runs_of, times
from jetbus.spark.schemas import TABLES
from jetbus.spark.typed import coded

__all__ = ["ASKED", "CARRIED", "COLUMNS", "count_requests", "give_requests", "requests_of"]

WINDOW_US = 60_000_000
ASKED = ("set", "call")
"""The events that are requests."""
COLUMNS = ("bus", "path", "event", "ts", "peer", "detail")
"""What is looked at of an event."""
CARRIED = ("bus", "window_start", "event", "path", "caller", "count", "errors", "us_min")
"""What is known of one request; its other columns come with those of the same minute."""
_ARROW = pa.schema(
    [(name, pa.string()) if name != "window_start" else (name, pa.timestamp("us", "UTC")) for name in CARRIED[:5]]
    + [(name, pa.int64()) for name in CARRIED[5:]]
)
PERCENTILES = {"us_p50": 0.5, "us_p90": 0.9, "us_p99": 0.99}
_UNKNOWN = np.iinfo(np.int64).max
"""How long a request took that does not tell; comes after all others."""
_CONNECTION = re.compile("#[0-9]+$")


def requests_of(events: pa.Table) -> pa.Table:
    """The requests among some events, one by one."""
    rows = events.filter(pa.array(places_of(events["event"], ASKED) >= 0))
    at = ints(rows["ts"])
    outcomes = [_outcome(detail) for detail in rows["detail"].to_pylist()]
    return pa.table(
        {
            "bus": rows["bus"],
            "window_start": times(at - at % WINDOW_US),
            "event": rows["event"],
            "path": rows["path"],
            "caller": _callers(coded(rows["peer"])),
            "count": pa.array(np.ones(len(at), np.int64)),
            "errors": pa.array([failed for failed, _ in outcomes], pa.int64()),
            "us_min": pa.array([us for _, us in outcomes], pa.int64()),
        }
    )


def _outcome(detail: str | None) -> tuple[int, int | None]:
    """Whether a request failed, and how long it took."""
    try:
        told = json.loads(detail or "{}")
        us = told.get("us")
        return int(told.get("outcome") == "error"), None if us is None else int(us)
    except (ValueError, TypeError, AttributeError):
        return 0, None


def _callers(peers: pa.DictionaryArray) -> pa.DictionaryArray:
    """The names of peers; those without a name have their number."""
    names = [_CONNECTION.sub("", peer) or peer for peer in peers.dictionary.to_pylist()]
    return coded(pa.array(names, pa.string()).take(peers.indices))


def count_requests(tables: Iterable[pa.Table], clock: Clock) -> pa.Table:
    """Requests as rows of their table, with a column ``into`` that says where each belongs."""
    rows = pa.concat_tables([table.select([*CARRIED]).cast(_ARROW) for table in tables]).combine_chunks()
    keys = keys_of(rows)
    now = keys.per_bus(dict(clock.now), NONE)[keys.bus_of(keys.of_rows)]
    is_over = ints(rows["window_start"]) + WINDOW_US <= now
    found = ((_counted(rows.filter(pa.array(is_over))), "requests"), (rows.filter(pa.array(~is_over)), OPEN))
    parts = [table.append_column("into", pa.repeat(into, len(table))) for table, into in found]
    return pa.concat_tables(parts, promote_options="default").select([*TABLES["requests"].names, "into"])


def _counted(rows: pa.Table) -> pa.Table:
    texts = [_codes(rows[name]) for name in ("bus", "event", "path", "caller")]
    groups = [ints(rows["window_start"]), *texts]
    us = ints(rows["us_min"], _UNKNOWN)
    order = np.lexsort((us, *groups))
    first, size = runs_of(*(column[order] for column in groups))
    us = us[order]
    known = np.add.reduceat(us != _UNKNOWN, first) if len(first) else first
    total = np.add.reduceat(np.where(us == _UNKNOWN, 0, us), first) if len(first) else first
    errors = np.add.reduceat(ints(rows["errors"])[order], first) if len(first) else first
    none = known == 0
    last = first + np.maximum(known - 1, 0)
    of_group = rows.take(pa.array(order[first]))
    return pa.table(
        {
            **{name: of_group[name] for name in ("bus", "window_start", "event", "path", "caller")},
            "count": pa.array(size, pa.int64()),
            "errors": pa.array(errors, pa.int64()),
            "error_rate": pa.array(errors / size, pa.float64()),
            "us_min": pa.array(us[first], pa.int64(), mask=none),
            "us_mean": pa.array(total / np.maximum(known, 1), pa.float64(), mask=none),
            **{
                name: pa.array(_percentile(us, first, known, share), pa.float64(), mask=none)
                for name, share in PERCENTILES.items()
            },
            "us_max": pa.array(us[last], pa.int64(), mask=none),
        }
    )


def _codes(column: pa.ChunkedArray) -> Ints:
    found: Ints = coded(column).indices.fill_null(-1).to_numpy().astype(np.int64)
    return found


def _percentile(us: Ints, first: Ints, known: Ints, share: float) -> Any:
    """Between two values that are next to each other in order."""
    place = np.maximum(known - 1, 0) * share
    below = place.astype(np.int64)
    above = np.minimum(below + 1, np.maximum(known - 1, 0))
    low, high = us[first + below].astype(np.float64), us[first + above].astype(np.float64)
    return low + (high - low) * (place - below)


# -- as a frame


def give_requests(batches: Iterable[pa.RecordBatch], *, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The same for rows of Spark: events, and open rows that have a ``window_start``."""
    found = [batch for batch in batches if batch.num_rows]
    if found:
        rows = pa.Table.from_batches(found)
        is_open = rows["window_start"].is_valid()
        events, carried = rows.filter(rows["window_start"].is_null()), rows.filter(is_open)
        yield from count_requests([requests_of(events), carried], clock).to_batches()
