"""The daemon's journal for the peers of its bus: methods under ``$jet/journal/``, and the past for fetch and get.

Tables go out as Arrow streams, page by page: bytes to binary peers, base64 to others. Whoever may not look back is told
so before anything is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jetbus import journal
from jetbus.bus.past import Happened, Then
from jetbus.bus.record import tell_again
from jetbus.daemon.control import read_any_rule
from jetbus.errors import Internal, Invalid, JetError, LimitReached, NotAllowed, WrongType
from jetbus.journal import pages
from jetbus.journal.instants import write_instant
from jetbus.journal.scan import Log
from jetbus.journal.segment import CLEARING_EVENTS, EVENTS, SCHEMA
from jetbus.journal.tree import TREE_EVENTS
from jetbus.paths import DAEMON_NODE, is_daemons
from jetbus.rules import EVERYTHING, Rule
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.session import Session
    from jetbus.daemon.daemon import Daemon
    from jetbus.daemon.journaling import Journaling, Written
    from jetbus.journal.watch import Seen

Found = TypeVar("Found")

NODE = f"{DAEMON_NODE}/journal"
ARROW = "application/vnd.apache.arrow.stream"
GONE = "retention has dropped what was asked for; the first event that can be told of has seq {}"

log = logging.getLogger("jetbus.daemon")


class History:
    """What was, for those who may know."""

    def __init__(self, daemon: Daemon, journaling: Journaling) -> None:
        self._daemon = daemon
        self._journaling = journaling
        self._journal = journal.open(journaling.directory)
        self._log = Log(journaling.directory)
        journaling.tell_again = self._tell_again
        for name, method in _METHODS.items():
            daemon.bus.own.serve(f"{NODE}/{name}", self._checked(name, method), daemon.bus.past_worker)

    def _checked(self, name: str, method: Callable[[History, Args], bytes]) -> Any:
        def call(session: Session, args: Any) -> Callable[[], bytes]:
            self._check_groups(session.auth, f"{NODE}/{name}")
            asked = Args(args)
            moment = self._journaling.bring_up_to_date()

            def read() -> bytes:
                moment.wait()
                return _guarded(lambda: method(self, asked))

            return read

        return call

    def _tell_again(self, paths: Iterable[str] | None) -> None:
        bus = self._daemon.bus
        tell_again(self._journaling.writer, bus, list(bus.tree.elements) if paths is None else paths)

    # -- who may

    def _check_groups(self, auth: Auth | None, path: str) -> None:
        groups = self._daemon.config.journal_groups
        if not groups and self._daemon.bus.users is None:
            return
        if auth is None or not set(groups) & set(auth.fetch_groups):
            raise NotAllowed(
                path, f"{path} is open to users of journal_groups only; the daemon's configuration has them"
            )

    def check(self, auth: Auth | None, instant: Any) -> None:
        self._check_groups(auth, NODE)
        _guarded(lambda: journal.read_instant(instant))

    # -- the past of a fetch or get

    def as_of(self, instant: Any, rule: Rule) -> list[Then]:
        return _guarded(lambda: self._tree(instant, _paths_only(rule)))

    def _tree(self, instant: Any, paths: Rule | None) -> list[Then]:
        return [self._then(row) for row in self._journal.as_of(instant, paths).to_pylist()]

    @staticmethod
    def _then(row: dict[str, Any]) -> Then:
        value = None if row["value"] is None or row["kind"] == "method" else row["value"].encode()
        return Then(row["path"], jsonrpc.encode(row["path"]), value, _is_fetch_only(row["detail"]), _text(row["ts"]))

    def since(self, instant: Any, rule: Rule, last_seq: int) -> list[Happened]:
        return _guarded(lambda: self._since(instant, rule, last_seq))

    def _since(self, instant: Any, rule: Rule, last_seq: int) -> list[Happened]:
        paths = _paths_only(rule)
        # One seq parts the tree from what came after it. An instant would not do: more events of that very instant may
        # be written between the one look and the other.
        seq = min(self._log.seq_at(self._log.instant_us(instant)), last_seq)
        tree = map(self._then, self._journal.as_of(rule=paths, seq=seq).to_pylist())
        events = self._happened(paths, seq + 1, last_seq)
        return [*(Happened("add", one.ts, one.path, one.value, one.fetch_only) for one in tree), *events]

    def _happened(self, rule: Rule | None, seq: int, last: int) -> list[Happened]:
        events: list[tuple[int, Happened]] = []
        for told, of_paths in ((TREE_EVENTS, rule), (CLEARING_EVENTS, None)):
            for batch in self._journal.read(of_paths, seq=seq, seq_until=last + 1, events=told):
                events += map(_read_event, batch.to_pylist())
                self._check_count(len(events))
        events.sort(key=lambda pair: pair[0])
        return [event for _, event in events]

    def _check_count(self, count: int) -> None:
        allowed = self._daemon.config.replay_events_max
        if count > allowed:
            self._daemon.bus.limit_hits["replay_events_max"] += 1
            raise LimitReached("replay_events_max", allowed, "too much has happened since then; begin later")

    def bring_up_to_date(self, rule: Rule | None = None) -> Moment:
        if rule is None:
            return Moment(self, self._journaling.bring_up_to_date())
        paths = _paths_only(rule) or EVERYTHING
        allowed = self._daemon.config.replay_events_max
        return Moment(self, self._journaling.bring_up_to_date(lambda path: _sees(paths, path), allowed))

    def happened_since(self, written: Written) -> list[Happened]:
        """Tell what was appended after a moment."""
        events = [_read_seen(seen) for seen in written.end()]
        self._check_count(len(events))
        return events

    # -- methods

    def offsets(self, _asked: Args) -> bytes:
        """Return where the journal begins and ends, and how far time has come in it."""
        # Asked before the journal is looked at: by then it has every event up to this instant.
        complete_us = self._journaling.writer.complete_us
        ((bus, offsets),) = self._journal.offsets().items()
        offsets["now"] = max(complete_us, offsets["now"] or 0) or None
        return binary.json_body(jsonrpc.encode({"bus": bus, "id": self._journaling.writer.identity.id, **offsets}))

    def range(self, asked: Args) -> bytes:
        """Events from a seq or an instant on."""
        return binary.typed_body(
            ARROW,
            pages.events_page(
                self._journal,
                asked.rule(),
                since=asked.get("since"),
                until=asked.get("until"),
                seq=asked.number("seq"),
                seq_until=asked.number("seqUntil"),
                columns=asked.names("columns", SCHEMA.names),
                events=asked.names("events", EVENTS),
                limit=asked.limit(),
            ),
        )

    def tree(self, asked: Args) -> bytes:
        """The tree at an instant or after a seq."""
        seq, offset, limit = asked.number("seq"), asked.number("offset") or 0, asked.limit()
        if seq is not None and asked.get("instant") is not None:
            raise Invalid("args", "a tree is asked for by its instant or by its seq, not by both")
        page = pages.tree_page(self._journal, asked.get("instant"), asked.rule(), seq=seq, offset=offset, limit=limit)
        return binary.typed_body(ARROW, page)

    def history(self, asked: Args) -> bytes:
        """The values of one path over time."""
        path, since, until = asked.get("path"), asked.get("since"), asked.get("until")
        if not isinstance(path, str):
            raise WrongType("path")
        seq, limit = asked.number("seq") or 0, asked.limit()
        return binary.typed_body(ARROW, pages.history_page(self._journal, path, since, until, seq=seq, limit=limit))


class Moment:
    """A moment of the journal, in the words of the bus."""

    def __init__(self, history: History, written: Written) -> None:
        self._history = history
        self._written = written
        self.wait = written.wait

    def end(self) -> list[Happened]:
        return self._history.happened_since(self._written)


_METHODS: dict[str, Callable[[History, Args], bytes]] = {
    "offsets": History.offsets,
    "range": History.range,
    "as_of": History.tree,
    "history": History.history,
}


class Args:
    """The arguments of a method, by name."""

    def __init__(self, given: Any) -> None:
        if given and not isinstance(given, dict):
            raise Invalid("args", 'the arguments are an object, such as {"since": "-2h"}')
        self._given: dict[str, Any] = given or {}

    def get(self, name: str) -> Any:
        return self._given.get(name)

    def number(self, name: str) -> int | None:
        found = self._given.get(name)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 63):
            raise WrongType(name)
        return found

    def limit(self) -> int:
        """How many rows are wanted, as far as that is possible."""
        return min(self.number("limit") or pages.ROWS_MAX, pages.ROWS_MAX)

    def names(self, name: str, known: Collection[str]) -> list[str] | None:
        found = self._given.get(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise WrongType(name)
        if unknown := [one for one in found if one not in known]:
            raise Invalid(name, f"{name} has no {', '.join(unknown)}; there are {', '.join(known)}")
        return found

    def rule(self) -> Rule | None:
        """The rule, as text or as the parameters of a fetch."""
        found = self._given.get("rule")
        return None if found is None else read_any_rule(found)


def _guarded(read: Callable[[], Found]) -> Found:
    """What the journal refuses is told in the words of the bus."""
    try:
        return read()
    except JetError:
        raise
    except journal.BadInstant as problem:
        raise Invalid("instant", str(problem)) from None
    except journal.JournalGone as problem:
        raise Invalid("journalGone", GONE.format(problem.first_seq)) from None
    except journal.JournalError as problem:
        log.error("a peer cannot be told what was: %s", problem)  # its text names files, which are nobody else's
        raise Internal("the journal cannot be read there; the daemon's log says why") from None


def _paths_only(rule: Rule) -> Rule | None:
    bare = replace(rule, value=(), sort=None)
    return None if bare == EVERYTHING else bare


def _is_fetch_only(detail: str | None) -> bool:
    return detail is not None and msgspec.json.decode(detail).get("fetchOnly") is True


def _text(ts: Any) -> str:
    return write_instant(round(ts.timestamp() * 1_000_000)) if ts is not None else ""


def _sees(paths: Rule, path: str) -> bool:
    """Whether a rule is about a path, as the bus sees it: the daemon's own states only if it says so."""
    return paths.matches_path(path) and (paths.sees_daemon or not is_daemons(path))


def _read_seen(seen: Seen) -> Happened:
    fetch_only = seen.detail is not None and _is_fetch_only(seen.detail.decode())
    value = None if seen.kind == "method" else seen.value
    path = "" if seen.event in CLEARING_EVENTS else seen.path
    return Happened(seen.event, write_instant(seen.ts_us), path, value, fetch_only)


def _read_event(row: dict[str, Any]) -> tuple[int, Happened]:
    path, value = row["path"] or "", row["value"]
    told = None if value is None or row["kind"] == "method" else value.encode()
    return row["seq"], Happened(row["event"], _text(row["ts"]), path, told, _is_fetch_only(row["detail"]))
