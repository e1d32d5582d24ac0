"""The HTTP API of the past: series, events, trees, differences and exports from one archive.

Every method here takes a request, blocks while it reads, and returns a response; the application calls them in
threads. Questions are limited: by points, bands, events and elements, each by a constant below.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from jetbus.errors import Invalid
from jetbus.journal import read_instant
from jetbus.journal.events import CUTS, TREE_EVENTS, VALUE_EVENTS
from jetbus.journal.recorded_units import UNIT, UnitTracker
from jetbus.peer.restore import MISSING, compare_values
from jetbus.radar.archive import Archive, Moment, Wanted
from jetbus.radar.exports import EXPORTS, show_event
from jetbus.radar.search import find_paths
from jetbus.radar.series import SeriesCache, find_bands, reduce_points

ARROW = "application/vnd.apache.arrow.stream"
EVENTS_MAX = 10_000
DIFFERENCES_MAX = 5_000
"""Differences that are listed; all are counted."""
PATHS_FOUND_MAX = 1_000
PATHS_MAX = 100
"""Paths that one question may name."""

LOOK_BACK = ("-1m", "-1h", "-1d", "-30d", None)
"""Starts of the searches for the latest event."""


class ArchiveHistory:
    """The past of a bus, as one archive has it."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._cache = SeriesCache(archive)

    def read_values(self, at: Moment, text: str) -> dict[str, Any]:
        """Return the values of the states that a rule matches at an instant, by path."""
        table = self.archive.read_tree(at, text)
        columns = table.select(["path", "kind", "value"]).to_pydict()
        rows = zip(columns["path"], columns["kind"], columns["value"], strict=True)
        return {path: msgspec.json.decode(value) for path, kind, value in rows if kind != "method" and value}

    # -- answers

    def describe_journal(self, _request: Request) -> Response:
        """Return the first and the last event of the journal."""
        return JSONResponse(self.archive.describe())

    def read_series(self, request: Request) -> Response:
        """Return the numbers of a path, reduced to a number of buckets."""
        points, since_us, until_us = self._load(request)
        return _arrow(reduce_points(points, since_us, until_us, _number(request, "points", 1000)))

    def read_bands(self, request: Request) -> Response:
        """Return the stretches of time in which a path had one value."""
        points, since_us, until_us = self._load(request)
        return _arrow(find_bands(points, since_us, until_us))

    def _load(self, request: Request) -> tuple[Any, int, int]:
        path = request.query_params.get("path")
        if not path:
            raise Invalid("the parameter path is missing")
        since_us = read_instant(_instant(request, "since") or "-1h")
        until_us = read_instant(_instant(request, "until") or "now")
        if since_us >= until_us:
            raise Invalid("since must be before until")
        member = request.query_params.get("member", "")
        return self._cache.load(path, member, since_us, until_us), since_us, until_us

    def read_events(self, request: Request) -> Response:
        """Return events, the oldest first, or with ``newest`` the latest ones, the newest first."""
        limit = max(1, min(_number(request, "limit", 1000), EVENTS_MAX))
        if request.query_params.get("newest"):
            rows, complete = self._read_newest(request, limit)
        else:
            rows = []
            for batch in self._events(request):
                rows += [show_event(row) for row in batch.slice(0, limit - len(rows)).to_pylist()]
                if len(rows) >= limit:
                    break
            # With exactly ``limit`` rows there may be more, so that it counts as incomplete.
            complete = len(rows) < limit
        return JSONResponse({"events": rows, "complete": complete})

    def _read_newest(self, request: Request, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Read all, and keep no more batches than hold the last rows."""
        # An archive is read from old to new, so the newest come last.
        kept: list[Any] = []
        count = 0
        for batch in self._events(request):
            kept.append(batch)
            count += batch.num_rows
            while sum(one.num_rows for one in kept[1:]) >= limit:
                del kept[0]
        rows = [row for batch in kept for row in batch.to_pylist()][-limit:]
        return [show_event(row) for row in reversed(rows)], count <= limit

    def read_last(self, request: Request) -> Response:
        """Return the latest event of one path; looks back further and further, since it is often recent."""
        path, event = request.query_params.get("path"), request.query_params.get("event", "change")
        if not path:
            raise Invalid("the parameter path is missing")
        for since in LOOK_BACK:
            newest = None
            for batch in self.archive.read_events([path], since, None, (event,)):
                if batch.num_rows:
                    newest = batch.slice(batch.num_rows - 1)
            if newest is not None:
                return JSONResponse({"event": show_event(newest.to_pylist()[0])})
        return JSONResponse({"event": None})

    def read_changes(self, request: Request) -> Response:
        """Return the last event of each path in a range, to bring a tree from its start to its end."""
        latest: dict[str, dict[str, Any]] = {}
        since, until = _instant(request, "since"), _instant(request, "until")
        # A cut ends every value at once, which no list of changes can say: the page has to read the whole tree again.
        if any(batch.num_rows for batch in self.archive.read_events(None, since, until, CUTS)):
            return JSONResponse({"reset": True, "elements": [], "removed": []})
        columns = ("path", "event", "value", "ts", "source_ts", "quality")
        # The page's tree is what the bus showed, so late values are no part of it.
        for batch in self.archive.read_events(_wanted(request, TREE_EVENTS), since, until, TREE_EVENTS):
            for row in batch.select(columns).to_pylist():
                latest[row["path"]] = row
        elements = [show_event(row) for row in latest.values() if row["event"] != "remove"]
        removed = [path for path, row in latest.items() if row["event"] == "remove"]
        answer = {"reset": False, "elements": elements, "removed": removed}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def _events(self, request: Request) -> Iterator[Any]:
        events = _read_kinds(request)
        return self.archive.read_events(
            _wanted(request, events), _instant(request, "since"), _instant(request, "until"), events
        )

    def _events_with_units(self, request: Request) -> Iterator[Any]:
        """Yield events with the unit that each value had."""
        events = _read_kinds(request)
        wanted = _wanted(request, events)
        tracker = None
        since, until = _instant(request, "since"), _instant(request, "until")
        # The unit of a value is in the description of its state, in an earlier event.
        for batch in self.archive.read_events(wanted, since, until, (*events, "describe")):
            if tracker is None and batch.num_rows:
                # Late events came later than others before them.
                tracker = UnitTracker(self.archive.read_tree_before(pc.min(batch["seq"]).as_py(), wanted))
            if tracker is not None:
                batch = batch.append_column(UNIT, tracker.add(batch))
                yield batch if "describe" in events else batch.filter(pc.not_equal(batch["event"], "describe"))

    def read_tree(self, request: Request) -> Response:
        """Return the tree at an instant: what the bus showed, or with ``corrected`` what was true."""
        at, text = _instant(request, "at") or "now", request.query_params.get("rule", "**")
        table = self.archive.read_tree(at, text, corrected=bool(request.query_params.get("corrected")))
        rows = [
            {**show_event(row), "method": row["kind"] == "method"}
            for row in table.select(["path", "kind", "value", "peer", "ts", "source_ts", "quality"]).to_pylist()
        ]
        return Response(msgspec.json.encode({"elements": rows}), media_type="application/json")

    def search(self, request: Request) -> Response:
        """Return the paths of an instant that a search finds, best first."""
        text = request.query_params.get("text", "")
        table = self.archive.read_tree(_instant(request, "at") or "now", "**").select(["path", "kind", "value"])
        rows = ((row["path"], _value(row), row["kind"] == "method") for row in table.to_pylist())
        found = find_paths(text, rows)
        limit = max(1, min(_number(request, "limit", 1000), PATHS_FOUND_MAX))
        answer = {"paths": found[:limit], "total": len(found)}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def read_differences(self, request: Request) -> Response:
        """Return the elements that were added, removed and changed between two instants."""
        text = request.query_params.get("rule", "**")
        before, after = (
            self.read_values(_instant(request, name) or default, text) for name, default in (("a", "-1h"), ("b", "now"))
        )
        rows, total = [], 0
        for path, old, new in (differences := compare_values(before, after)):
            total += 1
            if total > DIFFERENCES_MAX:
                # The loop has left the rest in the generator, to be counted without being listed.
                total += sum(1 for _ in differences)
                break
            sides = {name: value for name, value in (("before", old), ("after", new)) if value is not MISSING}
            rows.append({"path": path, **sides})
        answer = {"differences": rows, "total": total}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def export(self, request: Request) -> Response:
        """Return events as a file."""
        form = request.query_params.get("format", "csv")
        if form not in EXPORTS:
            raise Invalid(f"there is no format {form}; there are {', '.join(EXPORTS)}")
        media_type, write = EXPORTS[form]
        headers = {"content-disposition": f'attachment; filename="history.{form}"'}
        # Nothing is read yet: the response pulls part after part, each in a thread.
        parts = write(self._events_with_units(request))
        return StreamingResponse(iterate_in_threadpool(parts), media_type=media_type, headers=headers)


def _value(row: dict[str, Any]) -> Any:
    return msgspec.json.decode(row["value"]) if row["value"] else None


def _read_kinds(request: Request) -> tuple[str, ...]:
    """Return the kinds of events of a question."""
    return tuple(request.query_params.get("events", ",".join(VALUE_EVENTS)).split(","))


def _wanted(request: Request, events: tuple[str, ...]) -> Wanted:
    """Return the paths of a question: those that it names, a rule as text, or none for events without a path."""
    paths = request.query_params.getlist("path")
    if len(paths) > PATHS_MAX:
        raise Invalid(f"a question names at most {PATHS_MAX} paths, not {len(paths)}")
    if paths:
        return paths
    text = request.query_params.get("rule")
    return text or ("**" if set(events) & set(VALUE_EVENTS) else None)


def _instant(request: Request, name: str) -> str | int | None:
    """Return an instant of the query as the journal takes it: microseconds are numbers there."""
    text = request.query_params.get(name)
    return int(text) if text and text.isascii() and text.isdigit() else text


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"the parameter {name} must be a whole number, not {text}")
    return int(text)


def _arrow(table: Any) -> Response:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return Response(sink.getvalue(), media_type=ARROW)
