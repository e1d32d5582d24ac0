"""The journal of a live daemon, as format ``jet`` reads it: asked for over the bus, page by page.

The driver and every task connect by themselves. A daemon that goes away is waited for: the driver goes on with its last
answer, a task asks again for a while. Reading changes nothing, so that asking twice does no harm.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable
from typing import Any

from jetbus.errors import JetError, LoginRefused, NotAllowed, NotConnected, NotFound
from jetbus.journal.source import JournalRequest, is_dropped
from jetbus.peer import Peer
from jetbus.peer.values import encode_value
from jetbus.rules import Rule
from jetbus.spark.options import DaemonAddress
from jetbus.spark.spark_errors import BadOption

__all__ = ["DaemonAnswers", "close_connections", "connect", "keeps_journal", "tree_now"]

CALL_S = 60.0
"""Time limit for a page of the daemon."""
PATIENCE_S = 30.0
"""Time that a task waits for a daemon that has gone away."""
RETRY_S = 0.2
CONNECTIONS_MAX = 8
"""Connections that a process of tasks keeps, at the most."""


# -- connections


def connect(daemon: DaemonAddress) -> Peer:
    """Connect a peer to a daemon; the error names the option that is wrong."""
    try:
        return _connected(daemon)
    except LoginRefused as problem:
        raise _login_refused(problem, daemon) from problem
    except (JetError, OSError, ValueError) as problem:
        raise BadOption("url", str(problem)) from problem


def _login_refused(problem: LoginRefused, daemon: DaemonAddress) -> BadOption:
    return BadOption("user", f"{problem} at {daemon}; give user and password as the daemon has them")


def _connected(daemon: DaemonAddress) -> Peer:
    # Without reconnecting: callers try again by themselves, for as long as they want to wait.
    peer = Peer(daemon.url, name="spark", user=daemon.user, password=daemon.password, reconnect=False)
    peer.connect()
    return peer


class Connections:
    """Connections that outlive a task: one for each task would add two events to the journal that is read."""

    def __init__(self) -> None:
        self._open: dict[DaemonAddress, Peer] = {}
        atexit.register(self.close)

    def get(self, daemon: DaemonAddress) -> Peer:
        peer = self._open.get(daemon)
        if peer is not None and peer.connected:
            return peer
        self.drop(daemon)
        # The oldest goes first; a task that still needs it connects again.
        while len(self._open) >= CONNECTIONS_MAX:
            self.drop(next(iter(self._open)))
        peer = self._open[daemon] = _connected(daemon)
        return peer

    def drop(self, daemon: DaemonAddress) -> None:
        peer = self._open.pop(daemon, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        for daemon in list(self._open):
            self.drop(daemon)


_connections: Connections | None = None


def _process_connections() -> Connections:
    """Return the connections of this process, made when a task first needs them."""
    global _connections
    _connections = _connections or Connections()
    return _connections


def close_connections(daemons: Iterable[DaemonAddress]) -> None:
    """Close the connections of this process to some daemons."""
    for daemon in daemons:
        if _connections is not None:
            _connections.drop(daemon)


# -- questions about a daemon as a whole


def keeps_journal(daemon: DaemonAddress) -> bool:
    """Return True if a daemon has a journal; raise an error if this user must not read it."""
    answers = DaemonAnswers(daemon)
    try:
        answers(JournalRequest("offsets", {}))
    except JournalMissing:
        return False
    finally:
        answers.close()
    return True


def tree_now(daemon: DaemonAddress, rule: Rule | None) -> list[dict[str, Any]]:
    """Read the states of a daemon as they are now; it needs no journal."""
    with connect(daemon) as peer:
        values = peer.get_all(rule)
    return [
        {"bus": str(daemon), "path": path, "kind": "state", "value": encode_value(value).decode()}
        for path, value in values.items()
    ]


class JournalMissing(BadOption):
    """A daemon that keeps no journal."""


# -- answers


class DaemonAnswers:
    """Answers of the daemon's journal to requests; connects on the first one."""

    def __init__(self, place: DaemonAddress, *, in_task: bool = False) -> None:
        self._place = place
        self._peer: Peer | None = None
        self._in_task = in_task
        self._offsets: Any = None
        """The last answer about the first and last event of the journal."""

    def __call__(self, request: JournalRequest) -> Any:
        if request.method != "offsets":
            return self._call(request)
        try:
            self._offsets = self._call(request)
        except NotConnected as problem:
            # While the daemon is away, the driver goes on with its last answer.
            if self._offsets is None:
                raise BadOption("url", str(problem)) from problem
        return self._offsets

    def close(self) -> None:
        """Close the connection, if it is not one that outlives a task."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _call(self, request: JournalRequest) -> Any:
        deadline_s = time.monotonic() + (PATIENCE_S if self._in_task else 0.0)
        while True:
            try:
                return self._line().call(request.path, timeout_s=CALL_S, **request.params)
            except NotConnected:
                # Before ``JetError``, of which it is one: a daemon that is away is waited for, a refusal is not.
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(RETRY_S)
            except JetError as problem:
                if is_dropped(problem):
                    raise
                raise self._explained(problem) from problem

    def _line(self) -> Peer:
        if self._in_task:
            return _process_connections().get(self._place)
        if self._peer is None or not self._peer.connected:
            self.close()
            self._peer = _connected(self._place)
        return self._peer

    def _explained(self, problem: JetError) -> BadOption:
        """Return a refusal of the daemon as an error about the options."""
        if isinstance(problem, NotFound):
            return JournalMissing(
                "url", f"the daemon at {self._place} keeps no journal; start it with --journal DIR, or give another url"
            )
        if isinstance(problem, NotAllowed):
            return BadOption(
                "user",
                f"the journal of {self._place} is open to users of its journal_groups only; give the options user and "
                "password of one of them, or asOf 'now' for the tree",
            )
        if isinstance(problem, LoginRefused):
            return _login_refused(problem, self._place)
        return BadOption("url", f"the daemon at {self._place} refuses: {problem}")
