"""The journal of a live daemon, as format ``jet`` reads it: asked for over the bus, page by page.

The driver and every task connect by themselves. A daemon that goes away is waited for: the driver goes on with what it
knew, a task asks again for a while. Reading changes nothing, so that asking twice does no harm.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from jetbus import journal
from jetbus.errors import JetError, LoginRefused, NotAllowed, NotConnected, NotFound
from jetbus.journal.pages import read_page
from jetbus.journal.sieve import Sieve
from jetbus.peer import Peer
from jetbus.peer.values import encode_value
from jetbus.rules import Rule
from jetbus.rules.reading import write_rule
from jetbus.spark.buses import Reach, Wanted
from jetbus.spark.errors import BadOption, DataLoss
from jetbus.spark.options import Daemon

__all__ = ["DaemonBus", "connect", "keeps_journal", "let_go", "tree_now"]

CALL_S = 60.0
"""How long the daemon may take for a page."""
PATIENCE_S = 30.0
"""How long a task waits for a daemon that has gone away."""
RETRY_S = 0.2
LINES_MAX = 8
"""Connections that a process of tasks keeps, at the most."""


# -- connections


def connect(daemon: Daemon) -> Peer:
    """A peer that is connected to a daemon; the error names the option that is wrong."""
    try:
        return _connected(daemon)
    except LoginRefused as problem:
        raise _login_refused(problem, daemon) from problem
    except (JetError, OSError, ValueError) as problem:
        raise BadOption("url", str(problem)) from problem


def _login_refused(problem: LoginRefused, daemon: Daemon) -> BadOption:
    wrong = "user" if isinstance(problem.data, dict) and "invalidUser" in problem.data else "password"
    return BadOption(wrong, f"{problem} at {daemon}; give user and password as the daemon has them")


def _connected(daemon: Daemon) -> Peer:
    peer = Peer(daemon.url, name="spark", user=daemon.user, password=daemon.password, reconnect=False)
    peer.connect()
    return peer


class Lines:
    """Connections that outlive a task. One for each task would show as two events in the very journal that is read."""

    def __init__(self) -> None:
        self._open: dict[Daemon, Peer] = {}
        atexit.register(self.close)

    def get(self, daemon: Daemon) -> Peer:
        peer = self._open.get(daemon)
        if peer is not None and peer.connected:
            return peer
        self.drop(daemon)
        while len(self._open) >= LINES_MAX:
            self.drop(next(iter(self._open)))
        peer = self._open[daemon] = _connected(daemon)
        return peer

    def drop(self, daemon: Daemon) -> None:
        peer = self._open.pop(daemon, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        for daemon in list(self._open):
            self.drop(daemon)


_lines: Lines | None = None


def _kept_lines() -> Lines:
    """Those of this process, made when a task first needs them."""
    global _lines
    _lines = _lines or Lines()
    return _lines


def let_go(daemons: Iterable[Daemon]) -> None:
    """Close the connections to some daemons that this process keeps."""
    for daemon in daemons:
        if _lines is not None:
            _lines.drop(daemon)


# -- questions about a daemon as a whole


def keeps_journal(daemon: Daemon) -> bool:
    """Whether there is a journal to read; an error if it is there but not for us."""
    bus = DaemonBus(daemon)
    try:
        bus.ends()
    except NoJournal:
        return False
    finally:
        bus.close()
    return True


def tree_now(daemon: Daemon, rule: Rule | None) -> list[dict[str, Any]]:
    """The states of a daemon as they are now, whether or not it keeps a journal."""
    with connect(daemon) as peer:
        values = peer.get(rule)
    return [
        {"bus": str(daemon), "path": path, "kind": "state", "value": encode_value(value).decode()}
        for path, value in values.items()
    ]


class NoJournal(BadOption):
    """A daemon that keeps no journal."""


# -- the bus


class DaemonBus:
    """The bus of one daemon. Connects when it is first asked something."""

    def __init__(self, place: Daemon, *, in_task: bool = False) -> None:
        self.place = place
        self._peer: Peer | None = None
        self._in_task = in_task
        self._known: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        name: str = (self._known or self._offsets())["bus"]
        return name

    def ends(self) -> tuple[int, int]:
        reach = self.reach()
        return reach.first, reach.last

    def reach(self) -> Reach:
        found = self._offsets()
        last_us = found["last_ts"] or 0
        # An older daemon does not tell the time; then it has come as far as its last event.
        return Reach(found["first"], found["last"], last_us, found.get("now") or last_us)

    def _offsets(self) -> dict[str, Any]:
        """Where the journal begins and ends; as it was known last while the daemon is away."""
        try:
            self._known = self._call("offsets")
        except NotConnected as problem:
            if self._known is None:
                raise BadOption("url", str(problem)) from problem
        return self._known

    def seq_at(self, instant_us: int) -> int:
        table, following = self._page("range", since=instant_us, columns=["seq"], limit=1)
        return int(table["seq"][0].as_py() if table.num_rows else following) - 1

    def events(self, wanted: Wanted, first: int, last: int) -> Iterator[pa.RecordBatch]:
        told, complete = ({}, True) if wanted.rule is None else write_rule(wanted.rule)
        sieve = None if complete else Sieve(wanted.rule)
        columns = list(dict.fromkeys([*wanted.columns, *(sieve.columns if sieve else ())]))
        asked = {
            "rule": None if wanted.rule is None else told,
            "since": wanted.since_us,
            "until": wanted.until_us,
            "columns": columns,
        }
        seq = first
        while seq <= last:
            table, following = self._page("range", seq=seq, seqUntil=last + 1, **asked)
            for batch in table.to_batches():
                # The wire has no word for some rules; what is left of them is tested here.
                kept = sieve.keep(batch, sieve.first_mask(batch)) if sieve else batch
                yield kept.select(list(wanted.columns))
            if following is None or following <= seq:
                raise DataLoss(
                    f"the journal of {self.place} ends before event {seq}, which it had before; it was replaced by "
                    "another one: start with a new checkpoint"
                )
            seq = following

    def tree(self, instant_us: int, rule: Rule | None) -> Iterator[pa.RecordBatch]:
        told, complete = ({}, True) if rule is None else write_rule(rule)
        sieve = None if complete else Sieve(rule)
        offset: int | None = 0
        while offset is not None:
            table, offset = self._page("as_of", instant=instant_us, rule=told if rule else None, offset=offset)
            for batch in table.to_batches():
                yield sieve.keep(batch, sieve.first_mask(batch)) if sieve else batch

    def close(self) -> None:
        """Close the connection, if it is not one that outlives a task."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    # -- asking

    def _page(self, method: str, **asked: Any) -> tuple[Any, Any]:
        return read_page(self._call(method, **asked))

    def _call(self, method: str, **asked: Any) -> Any:
        given = {name: value for name, value in asked.items() if value is not None}
        deadline_s = time.monotonic() + (PATIENCE_S if self._in_task else 0.0)
        while True:
            try:
                return self._line().call(f"$jet/journal/{method}", timeout_s=CALL_S, **given)
            except NotConnected:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(RETRY_S)
            except JetError as problem:
                raise self._explained(problem, given) from problem

    def _line(self) -> Peer:
        if self._in_task:
            return _kept_lines().get(self.place)
        if self._peer is None or not self._peer.connected:
            self.close()
            self._peer = _connected(self.place)
        return self._peer

    def _explained(self, problem: JetError, asked: dict[str, Any]) -> Exception:
        """What the daemon refuses, in words of options."""
        if isinstance(problem, NotFound):
            return NoJournal(
                "url", f"the daemon at {self.place} keeps no journal; start it with --journal DIR, or give another url"
            )
        if isinstance(problem, NotAllowed):
            return BadOption(
                "user",
                f"the journal of {self.place} is open to users of its journal_groups only; give the options user and "
                "password of one of them, or asOf 'now' for the tree",
            )
        if isinstance(problem, LoginRefused):
            return _login_refused(problem, self.place)
        if isinstance(problem.data, dict) and problem.data.get("reason") == "journalGone":
            return journal.JournalGone(str(problem), first_seq=self.ends()[0] if "seq" in asked else 0)
        return BadOption("url", f"the daemon at {self.place} refuses: {problem}")
