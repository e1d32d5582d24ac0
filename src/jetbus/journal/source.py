"""Questions about the past, asked in one way of a journal on this machine and of a daemon's.

A journal answers three requests, which are the methods of a daemon below ``$jet/journal``:

    offsets     its first and last event, and the instant up to which it is complete
    range       events of a range of seqs and instants
    as_of       the tree at an instant or after a seq

All questions are composed of these. A daemon answers in pages, and its journal grows between two of them; a folder
answers at once. Nothing here does I/O: a ``Pager`` says which request is next and takes its answer, and a *query* is a
generator that yields requests, is sent their answers, and returns a result. ``run_query`` drives it in a blocking
program, ``run_query_async`` on an event loop.

    pager.request --> ask --> pager.feed(answer) --> pager.request ... None

Most callers hold a ``JournalSource``: the journal of one bus, with these questions as methods. Behind it is a
function that answers requests, ``FolderAnswers`` or a call over the bus.

A question means one moment. Before the first page everything in it that depends on the time is *pinned*: ``-2h`` and
``now`` become instants by the clock of the journal as it was when the question was asked, however long the way to the
journal took, and the end of a range becomes a seq. So all pages and all paths belong to the same answer, and a reader
comes to an end beside an owner that is faster.

A journal is in the order in which things came. ``read_effective`` and all that is made of it, histories and frames, are
in effective time instead (see ``effective``), with the late rows marked. A tree shows what the bus showed, and a
``read_corrected_tree`` what was true.

Here, and nowhere else, are also the errors for things that a journal does not have: ``NotRecorded`` for paths and rules
that match nothing, ``BeforeJournal`` for instants before its first event, ``NoJournal`` for a daemon that keeps none.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from jetbus.errors import JetError, NotFound
from jetbus.journal.events import CLEARING_EVENTS, CUTS, VALUE_EVENTS
from jetbus.journal.instants import Instant, read_instant, wall_clock_us, write_instant
from jetbus.journal.journal_errors import (
    NEEDS_PYARROW,
    BeforeJournal,
    JournalDamaged,
    JournalError,
    JournalGone,
    JournalReplaced,
    NoJournal,
    NotRecorded,
)
from jetbus.json_types import JsonObject
from jetbus.paths import DAEMON_NODE, find_similar_path
from jetbus.rules import EVERYTHING, Rule, read_rule, write_rule

if TYPE_CHECKING:
    import pyarrow as pa

    from jetbus.journal.reader import Journal

Result = TypeVar("Result")

NODE = f"{DAEMON_NODE}/journal"
HISTORY_COLUMNS = ("ts", "seq", "event", "path", "value", "peer", "source_ts", "quality", "late")
_POSITIONS = {"range": "seq", "as_of": "offset"}
"""Parameters by which the next page is asked for."""


class JournalRequest(NamedTuple):
    """A request to a journal."""

    method: str
    params: JsonObject

    @property
    def path(self) -> str:
        """Path of the method on the bus."""
        return f"{NODE}/{self.method}"


Query: TypeAlias = Generator[JournalRequest, Any, Result]
"""A question: yields requests, is sent their answers, returns its result."""
Ask: TypeAlias = Callable[[JournalRequest], Any]


class AskedAt:
    """The moment at which a question was asked."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._asked_s = monotonic_s()

    def find_now_us(self, journal_now_us: int | None) -> int:
        """Return the moment by the clock of the journal, given the present instant of that clock."""
        passed_us = round((self._monotonic_s() - self._asked_s) * 1_000_000)
        return (wall_clock_us() if journal_now_us is None else journal_now_us) - passed_us


class PinnedRange(NamedTuple):
    """A pinned range of a journal: instants in microseconds, None where it is open."""

    since_us: int | None
    until_us: int | None
    seq_until: int
    """Seq of the first event after those that there were when the question was asked."""
    begin_us: int | None
    """Instant of the journal's first event; None if it is empty."""
    end_us: int | None
    """Instant of its last event; None if it is empty."""
    now_us: int
    """Instant up to which the journal is complete."""

    def make_params(self) -> JsonObject:
        """Return the range as parameters of a request."""
        params: JsonObject = {"seqUntil": self.seq_until}
        if self.since_us is not None:
            params["since"] = self.since_us
        if self.until_us is not None:
            params["until"] = self.until_us
        return params

    def make_place(self, instant: Instant | None) -> JsonObject:
        """Return the place of a tree as parameters of a request, if ``instant`` is the start of this range."""
        # The last seq says what there is now, to the event; a clock cannot.
        is_present = instant is None or instant == "now"
        return {"seq": self.seq_until - 1} if is_present else {"instant": self.since_us}


# -- pages


class Pager:
    """Pages of one request, one after the other.

    ``request`` is the next one to make, None after the last page; ``feed`` takes its answer. A range must have its end,
    ``seqUntil``. With a rule, ``feed`` also makes the tests that the wire has no words for.
    """

    def __init__(
        self, method: str, params: JsonObject, rule: Rule | None = None, *, page_rows: int | None = None
    ) -> None:
        self._position = _POSITIONS[method]
        self._end: int | None = params["seqUntil"] if method == "range" else None
        self._rule: Rule | None = None
        self._columns: list[str] | None = None
        wanted = {**params, "limit": page_rows}
        if rule is not None and rule != EVERYTHING:
            wanted["rule"], is_complete = write_rule(rule)
            if not is_complete:
                self._rule = rule
                # The tests need these columns, whether or not the caller does.
                self._columns = wanted.get("columns")
                if self._columns is not None:
                    wanted["columns"] = list(dict.fromkeys([*self._columns, "event", "path", "value"]))
        known = {name: value for name, value in wanted.items() if value is not None}
        self.request: JournalRequest | None = JournalRequest(method, known)

    def feed(self, answer: Any) -> pa.RecordBatchReader:
        """Return the rows of a page, and move on to the next request."""
        request = self.request
        assert request is not None  # noqa: S101
        rows, following = read_answer(answer)
        self.request = None
        if following is not None and (self._end is None or following < self._end):
            if following <= request.params.get(self._position, -1):
                raise JournalReplaced(
                    f"the journal ends before event {following}, which it had before; it was replaced by another one"
                )
            self.request = JournalRequest(request.method, {**request.params, self._position: following})
        return rows if self._rule is None else self._select(request, rows, self._rule)

    def _select(self, request: JournalRequest, rows: pa.RecordBatchReader, rule: Rule) -> pa.RecordBatchReader:
        if request.method == "as_of":
            from jetbus.journal.tree import select_matching

            return select_matching(rows.read_all(), rule).to_reader()
        import pyarrow as pa

        from jetbus.journal.filters import select_events

        names = self._columns or rows.schema.names
        selected = select_events(rows, rule, request.params.get("always", ()))
        schema = pa.schema([rows.schema.field(name) for name in names])
        return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in selected))


def read_answer(answer: Any) -> tuple[pa.RecordBatchReader, int | None]:
    """Return the rows of an answer, without metadata, and the position of the next page if there is one."""
    try:
        from jetbus.journal.pages import read_page
    except ModuleNotFoundError as problem:
        if problem.name != "pyarrow":
            raise
        raise JetError(NEEDS_PYARROW) from None
    if hasattr(answer, "read_next_batch"):
        return answer, None
    table, following = (answer, None) if hasattr(answer, "schema") else read_page(answer)
    # The metadata says where the next page starts, which means nothing for the whole table.
    return table.replace_schema_metadata(None).to_reader(), following


def read_all(pager: Pager) -> Query[pa.Table]:
    """Return the rows of all pages."""
    tables = []
    while pager.request is not None:
        tables.append(pager.feed((yield pager.request)).read_all())
    import pyarrow as pa

    return pa.concat_tables(tables).combine_chunks()


# -- drivers


def run_query(query: Query[Result], ask: Ask) -> Result:
    """Run a query to its end; ``ask`` answers a request, or raises."""
    try:
        request = next(query)
        while True:
            try:
                answer = ask(request)
            except (JetError, JournalError) as problem:
                request = query.throw(explain_refusal(problem))
            else:
                request = query.send(answer)
    except StopIteration as done:
        result: Result = done.value
        return result


async def run_query_async(query: Query[Result], ask: Callable[[JournalRequest], Awaitable[Any]]) -> Result:
    """Run a query to its end on an event loop."""
    try:
        request = next(query)
        while True:
            try:
                answer = await ask(request)
            except (JetError, JournalError) as problem:
                request = query.throw(explain_refusal(problem))
            else:
                request = query.send(answer)
    except StopIteration as done:
        result: Result = done.value
        return result


def explain_refusal(problem: Exception) -> Exception:
    """Return the error that a refused request means for the reader of a journal."""
    if isinstance(problem, NotFound) and not isinstance(problem, NotRecorded | BeforeJournal):
        return NoJournal()
    return problem


def is_dropped(problem: Exception) -> bool:
    """Return True if a request was refused because retention has dropped its events."""
    data = getattr(problem, "data", None)
    return isinstance(problem, JournalGone) or (isinstance(data, dict) and data.get("reason") == "journalGone")


class FolderAnswers:
    """Answers of a journal on this machine over one bus."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __call__(self, request: JournalRequest) -> Any:
        params = request.params
        if request.method == "offsets":
            ((bus, offsets),) = self._journal.offsets().items()
            # Time passes also without a writer, and the clock of a journal may be ahead of that of this machine.
            return {"bus": bus, **offsets, "clock": max(wall_clock_us(), offsets["last_ts"] or 0)}
        rule = read_rule(params["rule"]) if "rule" in params else None
        if request.method == "as_of":
            return self._journal.as_of(params.get("instant"), rule, seq=params.get("seq"), missing_ok=True)
        import pyarrow as pa

        # One page as long as the range, read while the caller takes its rows.
        columns = params.get("columns") or self._journal.schema.names
        batches = self._journal.read(
            rule,
            params.get("since"),
            params.get("until"),
            seq=params.get("seq"),
            seq_until=params["seqUntil"],
            columns=columns,
            events=params.get("events"),
            always=params.get("always"),
            late=params.get("late", False),
        )
        return pa.RecordBatchReader.from_batches(pa.schema(map(self._journal.schema.field, columns)), batches)


class JournalSource:
    """Journal of one bus, for programs that block: in a folder of this machine, or behind a daemon.

    ``ask`` answers a request. Instants mean the moment ``asked``, by default that of each question. Events that
    retention has dropped raise ``JournalGone``, and a daemon without a journal ``NoJournal``.
    """

    def __init__(self, ask: Ask, asked: AskedAt | None = None, *, page_rows: int | None = None) -> None:
        self._ask = ask
        self._asked = asked
        self._page_rows = page_rows
        """Rows requested per page; None leaves it to the daemon."""

    def run(self, query: Query[Result]) -> Result:
        """Return the result of a query."""
        return run_query(query, self._answer)

    def _answer(self, request: JournalRequest) -> Any:
        try:
            return self._ask(request)
        except (JetError, JournalError) as problem:
            if is_dropped(problem) and not isinstance(problem, JournalGone):
                raise JournalGone(str(problem), first_seq=self.describe()["first"]) from problem
            explained = explain_refusal(problem)
            if explained is problem:
                raise
            raise explained from problem

    def describe(self) -> JsonObject:
        """Return the name and the id of the bus, and the first and the last event; instants in microseconds."""
        found: JsonObject = self._answer(JournalRequest("offsets", {}))
        return found

    def pin(self, since: Instant | None = None, until: Instant | None = None) -> PinnedRange:
        """Return a range of instants, pinned."""
        return self.run(pin(self._asked or AskedAt(), since, until))

    def read_events(self, params: JsonObject, rule: Rule | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of a range, given by parameters of the request, of which ``seqUntil`` must be one."""
        pager = Pager("range", params, rule, page_rows=self._page_rows)
        while pager.request is not None:
            yield from (batch for batch in pager.feed(self._answer(pager.request)) if batch.num_rows)

    def read_effective(self, params: JsonObject, rule: Rule | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of a range in effective time, with the column ``late``.

        ``params`` are as for ``read_events``. Late values are among them if ``events`` has ``past``.
        """
        yield from self._iterate_query(iterate_effective(params, rule, self._page_rows))

    def read_effective_table(self, params: JsonObject, rule: Rule | None = None) -> pa.Table:
        """Return the same as a table, which may be in a better order if the clocks of owners are far from right."""
        return self.run(read_effective(params, rule, self._page_rows))

    def _iterate_query(self, query: Generator[JournalRequest | pa.Table, Any, None]) -> Iterator[pa.RecordBatch]:
        """Yield the tables that a query yields between its requests."""
        answer = None
        while True:
            try:
                step = query.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(step, JournalRequest):
                answer = self._answer(step)
            else:
                yield from (batch for batch in step.to_batches() if batch.num_rows)

    def read_tree(self, instant: Instant | None = None, rule: Rule | None = None) -> pa.Table:
        """Return the tree at an instant, by default now; it is empty if nothing matches."""
        return self.read_tree_at(self.pin(instant).make_place(instant), rule)

    def read_tree_at(self, place: JsonObject, rule: Rule | None = None) -> pa.Table:
        """Return the tree at a place that does not depend on the time."""
        return self.run(read_all(Pager("as_of", place, rule, page_rows=self._page_rows)))

    def read_corrected_tree(self, span: PinnedRange, rule: Rule | None = None) -> pa.Table:
        """Return the tree that was true at the beginning of a pinned range, or that is true now if it has none."""
        return self.run(read_corrected_tree(span, rule or EVERYTHING, self._page_rows))

    def read_tree_before(self, seq: int, rule: Rule | None = None) -> pa.Table | None:
        """Return the tree just before an event; None if it was dropped or cannot be read."""
        try:
            return self.read_tree_at({"seq": seq - 1}, rule)
        except (JournalGone, JournalDamaged):
            return None

    def read_history(self, span: PinnedRange, rule: Rule) -> pa.Table:
        """Return the values of a pinned range, as ``read_span`` does."""
        return self.run(read_span(span, rule, self._page_rows))

    def find_seq(self, instant_us: int) -> int:
        """Return the last seq before an instant."""
        after = self.describe()["last"] + 1
        pager = Pager("range", {"since": instant_us, "seqUntil": after, "columns": ["seq"]}, page_rows=1)
        while pager.request is not None:
            for batch in pager.feed(self._answer(pager.request)):
                if batch.num_rows:
                    return int(batch["seq"][0].as_py()) - 1
        return int(after) - 1


def open_folder(directory: str | Path | Journal, asked: AskedAt | None = None) -> JournalSource:
    """Open the journal of one bus in a folder."""
    found = open_folders(directory, asked=asked)
    if len(found) != 1:
        buses = ", ".join(sorted(found))
        raise JournalError(f"there are journals of {len(found)} buses, {buses}; give the directory of one of them")
    return next(iter(found.values()))


def open_folders(directory: str | Path | Journal, asked: AskedAt | None = None) -> dict[str, JournalSource]:
    """Open the journals in a folder, or in all that a pattern matches, by the names of their buses."""
    from jetbus import journal

    opened = journal.open(directory) if isinstance(directory, str | Path) else directory
    return {bus: JournalSource(FolderAnswers(one), asked) for bus, one in opened.split().items()}


# -- questions


def pin(asked: AskedAt, since: Instant | None = None, until: Instant | None = None) -> Query[PinnedRange]:
    """Return a range with its ends resolved: see the head of this module."""
    offsets = yield JournalRequest("offsets", {})
    complete_us = max(offsets["now"] or 0, offsets["last_ts"] or 0)
    # The journal of a daemon is complete up to the present.
    now_us = asked.find_now_us(offsets.get("clock") or complete_us or None)
    since_us = None if since is None else read_instant(since, now_us)
    # The last seq says what there is now, to the event; a clock cannot.
    until_us = None if until is None or until == "now" else read_instant(until, now_us)
    return PinnedRange(since_us, until_us, offsets["last"] + 1, offsets["first_ts"], offsets["last_ts"], complete_us)


def check_recorded(span: PinnedRange, instant_us: int | None, shown: Instant | None = None) -> None:
    """Raise ``BeforeJournal`` if an instant is before the first event."""
    if instant_us is not None and span.begin_us is not None:
        check_begin(instant_us, span.begin_us, shown)


def check_begin(instant_us: int, begin_us: int, shown: Instant | None = None) -> None:
    """Raise ``BeforeJournal`` if an instant, which the reader may have written otherwise, is before the first event."""
    if instant_us < begin_us:
        named = shown if isinstance(shown, str) else write_instant(instant_us)
        raise BeforeJournal(named, write_instant(begin_us))


def read_tree(
    asked: AskedAt, instant: Instant | None, rule: Rule = EVERYTHING, *, corrected: bool = False
) -> Query[pa.Table]:
    """Return the tree at an instant, by default now; raise if no path of it matches.

    It is what the bus showed, or with ``corrected`` what was true.
    """
    span = yield from pin(asked, instant)
    check_recorded(span, span.since_us, instant)
    place = span.make_place(instant)
    if corrected:
        tree = yield from read_corrected_tree(span._replace(since_us=None) if instant == "now" else span, rule)
    else:
        tree = yield from read_all(Pager("as_of", place, rule))
    # A rule that tests values may well match none of them.
    if not tree.num_rows and rule != EVERYTHING:
        known = yield from read_all(Pager("as_of", place))
        check_matches([rule], known["path"].to_pylist(), "at that time")
    return tree


LISTING = "the tree of that time, without a rule, lists what there is"
"""Next step of a Python program that has asked for something that was not recorded; commands have their own."""


def check_matches(rules: Sequence[Rule], known: Collection[str], when: str, listing: str = LISTING) -> None:
    """Raise ``NotRecorded`` if none of the known paths matches one of the rules, with the path that may be meant."""
    if any(rule.matches_path(path) for rule in rules for path in known):
        return
    exact = next((path for rule in rules for path in rule.exact_paths or ()), None)
    similar = None if exact is None else find_similar_path(exact, known)
    shown = " or ".join(map(show_rule, rules))
    hint = f"did you mean {similar}?" if similar else listing
    problem = NotRecorded(shown, f"nothing in the journal matches {shown} {when}; {hint}")
    problem.similar = similar
    raise problem


def show_rule(rule: Rule) -> str:
    """Return the paths of a rule as people write them.

    >>> from jetbus.rules import rule
    >>> show_rule(rule("plant/*/speed value>7")), show_rule(rule(starts_with="plant/"))
    ('plant/*/speed', 'plant/**')
    """
    if rule.exact_paths:
        return " or ".join(rule.exact_paths)
    return rule.glob or (f"{rule.prefix}**" if rule.prefix else " ".join(f"{op} {what}" for op, what in rule.path))


def read_history(asked: AskedAt, rule: Rule, since: Instant | None, until: Instant | None) -> Query[pa.Table]:
    """Return the values over time of all paths that match a rule, with path and unit; raise if there are none.

    A path that did not change in the range is without rows.
    """
    span = yield from pin(asked, since, until)
    # A range may start before the journal does, but not end there.
    check_recorded(span, span.until_us, until)
    rows = yield from read_span(span, rule)
    if not rows.num_rows:
        yield from check_known(span, [rule])
    return rows


def read_span(span: PinnedRange, rule: Rule, page_rows: int | None = None) -> Query[pa.Table]:
    """Return the rows of a pinned range with ``HISTORY_COLUMNS`` and the unit of each, oldest first.

    Values are not tested: one that does not match still ends the one before it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from jetbus.journal.recorded_units import UNIT, UnitTracker

    paths = without_value_tests(rule)
    params = span.make_params() | {
        "events": [*VALUE_EVENTS, "describe"],
        "columns": [*HISTORY_COLUMNS[:-1], "detail"],
    }
    rows = yield from read_effective(params, paths, page_rows)
    before = None
    if not _is_described_within(rows):
        # The units that were valid before. The values do not need them if those events were dropped or damaged.
        try:
            place = find_place_before(span, rows)
            before = yield from read_all(Pager("as_of", place, paths, page_rows=page_rows))
        except (JetError, JournalError) as problem:
            if not is_dropped(problem) and not isinstance(problem, JournalDamaged):
                raise
    units = UnitTracker(before)
    columns = [units.add(batch) for batch in rows.to_batches()]
    rows = rows.append_column(UNIT, pa.chunked_array(columns, UNIT.type))
    return rows.filter(pc.not_equal(rows["event"], "describe")).drop_columns(["detail"])


def find_place_before(span: PinnedRange, rows: pa.Table) -> JsonObject:
    """Return the place of the tree just before the first row that is not late."""
    import pyarrow.compute as pc

    live = rows["seq"].filter(pc.invert(rows["late"]))
    if len(live):
        return {"seq": live[0].as_py() - 1}
    return {"seq": span.seq_until - 1} if span.until_us is None else {"instant": span.until_us}


def iterate_effective(
    params: JsonObject, rule: Rule | None, page_rows: int | None = None, *, is_stream: bool = True
) -> Generator[JournalRequest | pa.Table, Any, None]:
    """Yield requests for the events of a range, and between them the events in effective time."""
    import pyarrow as pa

    from jetbus.journal.effective import HELD_US, MERGE_COLUMNS, EffectiveOrder
    from jetbus.journal.segment import EVENTS, SCHEMA

    columns = list(params.get("columns") or SCHEMA.names)
    kinds = list(params.get("events") or EVENTS)
    needed = {**params, "columns": list(dict.fromkeys([*columns, *MERGE_COLUMNS]))}
    late = pa.schema(map(SCHEMA.field, needed["columns"])).empty_table()
    if "past" in kinds:
        wanted = {name: value for name, value in needed.items() if name not in ("events", "always", "seq")}
        late = yield from read_all(Pager("range", wanted | {"late": True}, rule, page_rows=page_rows))
    order = EffectiveOrder(late, HELD_US if is_stream else None)
    live = Pager("range", needed | {"events": [kind for kind in kinds if kind != "past"]}, rule, page_rows=page_rows)
    while live.request is not None:
        for batch in live.feed((yield live.request)):
            rows = order.add(batch)
            if rows is not None and rows.num_rows:
                yield rows.select([*columns, "late"])
    yield order.end().select([*columns, "late"])


def read_effective(params: JsonObject, rule: Rule | None, page_rows: int | None = None) -> Query[pa.Table]:
    """Return the events of a range in effective time, with the column ``late``."""
    import pyarrow as pa

    found: list[pa.Table] = []
    query, answer = iterate_effective(params, rule, page_rows, is_stream=False), None
    while True:
        try:
            step = query.send(answer)
        except StopIteration:
            return pa.concat_tables(found).combine_chunks()
        answer = None
        if isinstance(step, JournalRequest):
            answer = yield step
        else:
            found.append(step)


def read_corrected_tree(span: PinnedRange, rule: Rule, page_rows: int | None = None) -> Query[pa.Table]:
    """Return the tree that was true at the beginning of a range, with late values and the column ``late``.

    A state that did not exist then, because its owner could not be heard, has the last late value of that time, unless
    it was removed after it.
    """
    from jetbus.journal.effective import find_latest
    from jetbus.journal.tree import correct_tree, select_matching

    paths = without_value_tests(rule)
    place = span.make_place(None) if span.since_us is None else {"instant": span.since_us}
    tree = yield from read_all(Pager("as_of", place, paths, page_rows=page_rows))
    params: JsonObject = {"seqUntil": span.seq_until}
    if span.since_us is not None:
        params["until"] = span.since_us + 1
    columns = ["path", "kind", "value", "peer", "ts", "seq", "source_ts", "quality"]
    pager = Pager("range", params | {"columns": columns, "late": True}, paths, page_rows=page_rows)
    late = None
    while pager.request is not None:
        page = pager.feed((yield pager.request)).read_all()
        late = find_latest([page] if late is None else [late, page])
    assert late is not None  # noqa: S101
    gone = set(late["path"].to_pylist()) - set(tree["path"].to_pylist())
    ends: list[dict[str, Any]] = []
    if gone:
        first = min(read_instant(row["source_ts"]) for row in late.to_pylist() if row["path"] in gone)
        ended = params | {"since": first, "events": ["remove", *CLEARING_EVENTS], "always": list(CLEARING_EVENTS)}
        ended["columns"] = ["ts", "path"]
        ends = (yield from read_all(Pager("range", ended, paths, page_rows=page_rows))).to_pylist()
    return select_matching(correct_tree(tree, late, ends), rule)


def _is_described_within(rows: pa.Table) -> bool:
    """Return True if the first row of each path describes it."""
    from jetbus.journal.recorded_units import DESCRIBING_EVENTS

    first: dict[str, str] = {}
    for path, event in zip(rows["path"].to_pylist(), rows["event"].to_pylist(), strict=True):
        first.setdefault(path, event)
    return set(first.values()) <= set(DESCRIBING_EVENTS)


def check_known(span: PinnedRange, rules: Sequence[Rule], listing: str = LISTING) -> Query[None]:
    """Raise ``NotRecorded`` if nothing at the end of a range matches one of the rules."""
    place: JsonObject = {"seq": span.seq_until - 1} if span.until_us is None else {"instant": span.until_us}
    known = yield from read_all(Pager("as_of", place))
    check_matches(rules, known["path"].to_pylist(), "in that time", listing)


def read_cuts(span: PinnedRange, page_rows: int | None = None) -> Query[list[tuple[int, int]]]:
    """Return the cuts of a pinned range: the seq of each, and the last instant before it at which values were known."""
    params = span.make_params() | {"events": list(CUTS), "columns": ["ts", "seq", "event", "detail"]}
    rows = (yield from read_all(Pager("range", params, page_rows=page_rows))).to_pylist()
    found, stopped = [], None
    for row in rows:
        at_us = read_instant(row["ts"])
        # A start or a gap is recorded late. The event before it is known, and a gap may say how far it reaches.
        if row["event"] != "stop" and stopped != row["seq"] - 1:
            before = yield from read_time(row["seq"] - 1)
            last_us = at_us if before is None else before
            since = _read_gap(row["detail"])
            # Between the event before and the cut itself, whatever the detail says.
            at_us = last_us if since is None else min(max(read_instant(since), last_us), at_us)
        stopped = row["seq"] if row["event"] == "stop" else None
        found.append((row["seq"], at_us))
    return found


def _read_gap(detail: str | None) -> str | None:
    import json

    since: str | None = json.loads(detail or "{}").get("since")
    return since


def read_time(seq: int) -> Query[int | None]:
    """Return the instant of an event; None if it was dropped."""
    try:
        rows = yield from read_all(Pager("range", {"seq": seq, "seqUntil": seq + 1, "columns": ["ts"]}))
    except (JetError, JournalError) as problem:
        if not is_dropped(problem):
            raise
        return None
    return read_instant(rows["ts"][0].as_py()) if rows.num_rows else None


def without_value_tests(rule: Rule) -> Rule:
    """Return the path part of a rule."""
    return replace(rule, value=(), sort=None)


def list_paths(tables: Iterable[pa.Table]) -> list[str]:
    """Return the paths in some tables, each once."""
    return list(dict.fromkeys(path for table in tables for path in table["path"].to_pylist()))
