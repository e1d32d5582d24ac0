"""Metrics of the daemon: states under ``$jet/`` and the pages /health and /metrics.

All of them show the same numbers, read when they are asked for; while a peer fetches the states, they are brought up to
date once a second.
"""

from __future__ import annotations

import heapq
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

import jetbus
from jetbus.bus.access import ADMINS_ONLY
from jetbus.paths import DAEMON_NODE

if TYPE_CHECKING:
    from jetbus.daemon.connection import Connection
    from jetbus.daemon.daemon import Daemon
    from jetbus.daemon.journaling import Journaling

REFRESH_S = 1.0
ADDRESSES_SHOWN = 20


class Number(NamedTuple):
    """One figure: its name in ``$jet/``, its name for Prometheus, and its meaning."""

    name: str
    metric: str
    kind: str
    help: str


NUMBERS = (
    Number("uptime_s", "jetbus_uptime_seconds", "gauge", "Seconds since the daemon started"),
    Number("connections", "jetbus_connections", "gauge", "Open connections"),
    Number("elements", "jetbus_elements", "gauge", "States and methods on the bus"),
    Number("fetches", "jetbus_fetches", "gauge", "Fetches of all peers"),
    Number("audiences", "jetbus_audiences", "gauge", "Groups of fetches that share their notifications"),
    Number(
        "stale_states",
        "jetbus_stale_states",
        "gauge",
        "States that have not changed for as long as their schema allows",
    ),
    Number("routes", "jetbus_routes", "gauge", "Requests that wait for an owner's answer"),
    Number("kept_bytes", "jetbus_kept_bytes", "gauge", "Bytes that peers make the daemon keep in memory"),
    Number("inbound_bytes", "jetbus_inbound_bytes", "gauge", "Bytes read that wait to be completed or handled"),
    Number("heavy_peers", "jetbus_heavy_peers", "gauge", "Peers with messages that wait for their next turn"),
    Number("outbox_bytes", "jetbus_outbox_bytes", "gauge", "Bytes that peers have not read yet"),
    Number("slow_peers", "jetbus_slow_peers", "gauge", "Peers that read more slowly than they are sent to"),
    Number("messages_received", "jetbus_messages_received_total", "counter", "Messages received"),
    Number("writes", "jetbus_writes_total", "counter", "Writes to peers; one carries many messages"),
    Number("bytes_sent", "jetbus_bytes_sent_total", "counter", "Bytes written to peers"),
    Number("changes_conflated", "jetbus_changes_conflated_total", "counter", "Changes a newer one has replaced"),
    Number("reservations", "jetbus_reservations", "gauge", "Paths kept for users after a lost connection"),
    Number("logins_waiting", "jetbus_logins_waiting", "gauge", "Logins that wait for their password check"),
    Number("logins_failed", "jetbus_logins_failed_total", "counter", "Refused authentications"),
)
RATES = {"messages_received": "messages_per_s", "writes": "writes_per_s", "bytes_sent": "bytes_per_s"}
"""Counters that are also published as a rate."""


LOGINS = f"{DAEMON_NODE}/logins"
"""Names of the users that are logged in, by the number of the peer; for administrators."""


class Page(NamedTuple):
    """A page of the HTTP face."""

    content_type: str
    text: str


class Metrics:
    """Figures of the daemon, published as states and served as pages."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._started = time.monotonic()
        self._rates_at = self._started
        self._rates_from: dict[str, float] = {}
        self._rates: dict[str, float] = dict.fromkeys(RATES.values(), 0.0)
        self._peers: set[str] = set()

    # -- the figures

    def numbers(self) -> dict[str, float]:
        """Return all figures as they are now."""
        daemon = self._daemon
        bus, flow = daemon.bus, daemon.flow
        outboxes = [connection.outbox for connection in daemon.connections]
        return {
            "uptime_s": round(time.monotonic() - self._started, 1),
            "connections": len(daemon.connections) + len(daemon.handshakes),
            "elements": bus.element_count,
            "fetches": sum(len(session.fetches) for session in bus.sessions.values()),
            "audiences": len(bus.fetches),
            "stale_states": bus.staleness.stale,
            "routes": bus.routes.count,
            "kept_bytes": bus.book.all.kept_bytes,
            "inbound_bytes": daemon.inbound.total_bytes,
            "heavy_peers": daemon.turns.heavy_count,
            "outbox_bytes": sum(outbox.waiting_bytes for outbox in outboxes),
            "slow_peers": sum(outbox.slow for outbox in outboxes),
            "messages_received": bus.received,
            "writes": flow.sent,
            "bytes_sent": flow.sent_bytes,
            "changes_conflated": flow.conflated,
            "reservations": bus.permissions.reservations.count(daemon.loop.time()),
            "logins_waiting": daemon.logins.waiting,
            "logins_failed": bus.logins_failed,
        }

    def _update_rates(self, numbers: dict[str, float]) -> None:
        now = time.monotonic()
        passed_s = now - self._rates_at
        # Two readers at nearly the same time would see the rate of a few milliseconds.
        if passed_s < REFRESH_S / 2:
            return
        for counter, rate in RATES.items():
            self._rates[rate] = round((numbers[counter] - self._rates_from.get(counter, 0.0)) / passed_s, 1)
            self._rates_from[counter] = numbers[counter]
        self._rates_at = now

    # -- states

    @property
    def watched(self) -> bool:
        """True if a peer fetches the states."""
        return self._daemon.bus.fetches.watch_daemon

    def refresh(self) -> None:
        """Bring the states under ``$jet/`` up to date."""
        numbers = self.numbers()
        self._update_rates(numbers)
        fixed = {"version": jetbus.__version__, "pid": os.getpid(), "listening": self._daemon.listening}
        fixed["ws_origins"] = self._daemon.config.ws_origins
        fixed["users"] = self._daemon.bus.permissions.users is not None
        states: dict[str, Any] = {**fixed, **numbers, **self._rates}
        if self._daemon.journaling is not None:
            states["journal/stats"] = self._journal_stats(self._daemon.journaling)
        states["addresses"] = self._addresses()
        states["limits"] = self._limits()
        states["limit_hits"] = {name: self._daemon.bus.limit_hits[name] for name in states["limits"]}
        peers = {f"peers/{peer.session.number}": self._peer(peer) for peer in self._daemon.connections if peer.session}
        for gone in self._peers - peers.keys():
            self._daemon.bus.builtin.remove(f"{DAEMON_NODE}/{gone}")
        self._peers = set(peers)
        for name, value in (states | peers).items():
            self._daemon.bus.builtin.publish(f"{DAEMON_NODE}/{name}", msgspec.json.encode(value))
        users = {
            str(session.number): session.auth.user for session in self._daemon.bus.sessions.values() if session.auth
        }
        self._daemon.bus.builtin.publish(LOGINS, msgspec.json.encode(users), ADMINS_ONLY)

    def _limits(self) -> dict[str, int]:
        return self._daemon.limits()

    def _addresses(self) -> dict[str, dict[str, int]]:
        """Return the addresses that make the daemon keep most."""
        levels = self._daemon.bus.book.addresses.items()
        most = heapq.nlargest(ADDRESSES_SHOWN, levels, key=lambda item: item[1].kept_bytes)
        return {
            name: {"peers": level.peers, "fetches": level.fetches, "kept_bytes": level.kept_bytes}
            for name, level in most
        }

    @staticmethod
    def _peer(connection: Connection) -> dict[str, Any]:
        session = connection.session
        assert session is not None  # noqa: S101
        return {
            "name": session.name,
            "dialect": session.dialect.name,
            "transport": connection.kind,
            "address": connection.address,
            "elements": len(session.elements),
            "fetches": len(session.fetches),
            "routes": len(session.routes),
            "kept_bytes": session.account.peer.kept_bytes,
            "outbox_bytes": connection.outbox.waiting_bytes,
            "conflated": connection.outbox.conflated,
            "slow": connection.outbox.slow,
        }

    # -- pages

    def page(self, path: str) -> Page | None:
        """Return the page at a path, None if there is none."""
        if path == "/health":
            health: dict[str, Any] = {"status": "ok", "version": jetbus.__version__, **self.numbers()}
            journaling = self._daemon.journaling
            if journaling is not None and journaling.waits:
                health |= {"journal_waits": _waits(journaling)}
            if journaling is not None and (problem := journaling.problem) is not None:
                health |= {"status": "journal failing", "journal": problem}
            return Page("application/json", msgspec.json.encode(health).decode() + "\n")
        if path == "/metrics":
            return Page("text/plain; version=0.0.4; charset=utf-8", self._metrics())
        return None

    def _journal_stats(self, journaling: Journaling) -> dict[str, Any]:
        config = self._daemon.config
        return {
            **journaling.writer.stats(),
            "problem": journaling.problem,
            "waited_s": round(journaling.waited_s, 6),
            "waited_longest_s": round(journaling.waited_longest_s, 6),
            "keep_bytes": config.journal_keep_mb * 1_000_000,
            "keep_s": config.journal_keep_s,
        }

    def _journal_metrics(self) -> list[str]:
        journaling = self._daemon.journaling
        if journaling is None:
            return []
        stats = self._journal_stats(journaling)
        stats["failing"] = int(stats["problem"] is not None)
        metrics = [_metric(row.metric, row.kind, row.help, {"": stats[row.name]}) for row in JOURNAL_NUMBERS]
        return [line for lines in metrics for line in lines]

    def _metrics(self) -> str:
        numbers = self.numbers()
        lines = []
        for number in NUMBERS:
            lines += _metric(number.metric, number.kind, number.help, {"": numbers[number.name]})
        lines += self._journal_metrics()
        limits = self._limits()
        hits = self._daemon.bus.limit_hits
        lines += _metric("jetbus_limit", "gauge", "Configured limits", limits, label="limit")
        counts = {name: hits[name] for name in limits}
        lines += _metric("jetbus_limit_hits_total", "counter", "How often a limit was crossed", counts, label="limit")
        return "\n".join(lines) + "\n"


JOURNAL_NUMBERS = (
    Number("events", "jetbus_journal_events_total", "counter", "Events written to the journal"),
    Number("bytes", "jetbus_journal_bytes_total", "counter", "Bytes written to the journal"),
    Number("pending", "jetbus_journal_pending", "gauge", "Events that are not yet written"),
    Number("missed", "jetbus_journal_missed_total", "counter", "Events the journal had to drop"),
    Number("segments", "jetbus_journal_segments", "gauge", "Segments of the journal"),
    Number("failing", "jetbus_journal_failing", "gauge", "1 while the journal cannot be written"),
    Number("waited_s", "jetbus_journal_waited_seconds_total", "counter", "Seconds the bus waited for the disk"),
    Number("waited_longest_s", "jetbus_journal_waited_longest_seconds", "gauge", "Longest single wait for the disk"),
)


def _waits(journaling: Journaling) -> dict[str, Any]:
    """Return the text of ``/health`` for a bus that waits for its disk: the setting, and the time it has waited."""
    return {
        "because": "journal_fsync = always: no event is sent before it is on disk",
        "waited_s": round(journaling.waited_s, 3),
        "waited_longest_s": round(journaling.waited_longest_s, 3),
    }


def _metric(name: str, kind: str, text: str, values: dict[str, Any], label: str = "") -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for key, value in values.items():
        lines.append(f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}")
    return lines
