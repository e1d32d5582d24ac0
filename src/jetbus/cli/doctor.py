"""``jet doctor``: looks for what is wrong between here and the bus, and says what to do."""

from __future__ import annotations

import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import click

import jetbus
from jetbus.cli import machine
from jetbus.cli.buses import LOCAL, Bus, contexts_file
from jetbus.cli.failures import Code, code_of, sentence
from jetbus.cli.frame import Example, command
from jetbus.cli.machine import Finding
from jetbus.cli.output import Output
from jetbus.cli.quick import QuickPeer
from jetbus.errors import JetError, NotConnected, UnknownService
from jetbus.peer.address import read_url
from jetbus.peer.daemons import words_of
from jetbus.rules import parse_rule

ROUNDS = 20
SLOW_MS = 50.0


def _program() -> Iterator[Finding]:
    yield Finding("program", "ok", f"jet {jetbus.__version__}, Python {platform.python_version()}")
    if sys.stdout.encoding.lower().replace("-", "") != "utf8":
        yield Finding(
            "terminal", "warning", f"the terminal is {sys.stdout.encoding}; paths are UTF-8, set LANG=C.UTF-8"
        )


def _contexts() -> Iterator[Finding]:
    file = contexts_file()
    if not file.exists():
        yield Finding("contexts", "ok", f"none; `jet context add` keeps them in {file}")
    elif stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding("contexts", "warning", f"others may read {file}, which has passwords; chmod 600 it")
    else:
        yield Finding("contexts", "ok", str(file))


def _source(bus: Bus) -> Finding:
    named = [name for name in ("JET_URL", "JET_CONTEXT") if os.environ.get(name)]
    user = f" as {bus.user}" if bus.user else ""
    return Finding("bus", "ok", f"{bus.shown_url}{user}{' from ' + named[0] if named else ''}")


def _daemon(peer: QuickPeer) -> Iterator[Finding]:
    daemon = peer.daemon
    name, version = daemon.get("name", "unknown"), daemon.get("version", "?")
    if peer.is_ours:
        same = version == jetbus.__version__
        text = f"jetd {version}" + ("" if same else f", but jet is {jetbus.__version__}; bring both to one version")
        yield Finding("daemon", "ok" if same else "warning", text)
    else:
        timeouts = "" if words_of(daemon).has_timeouts else "no timeouts, "
        yield Finding("daemon", "ok", f"{name} {version}: {timeouts}no `jet peers`; jet tests rules itself")


def _round_trip(peer: QuickPeer) -> Iterator[Finding]:
    times_ms = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with suppress(UnknownService):  # lua-jet says nothing of itself, but answers
            peer.ask("info", {})
        times_ms.append(1e3 * (time.perf_counter() - began))
    middle = sorted(times_ms)[ROUNDS // 2]
    slow = middle > SLOW_MS
    text = f"{middle:.2f} ms in the middle of {ROUNDS}, {max(times_ms):.2f} ms at most"
    yield Finding(
        "round trip", "warning" if slow else "ok", text + ("; is the network or the daemon busy?" if slow else "")
    )


def _figures(peer: QuickPeer) -> Iterator[Finding]:
    if not peer.is_ours:
        return
    told = peer.get(parse_rule("$jet/*"))
    yield Finding(
        "elements", "ok", f"{told['$jet/elements']} states and methods, {told['$jet/connections']} connections"
    )
    slow = told["$jet/slow_peers"]
    text = f"{slow} read too slowly; `jet peers` shows who" if slow else "none"
    yield Finding("slow peers", "warning" if slow else "ok", text)
    hit = [f"{name} {count} times" for name, count in told["$jet/limit_hits"].items() if count]
    text = f"{', '.join(hit)} since the start; raise them in the daemon's settings" if hit else "none was reached"
    yield Finding("limits", "warning" if hit else "ok", text)


def _journal(peer: QuickPeer) -> Iterator[Finding]:
    stats = peer.get(parse_rule("$jet/journal/stats")).get("$jet/journal/stats") if peer.is_ours else None
    if stats is None:
        return
    if stats["problem"]:
        text = f"the daemon cannot write its journal: {stats['problem']}; make room, or let it write there"
        yield Finding("daemon's journal", "wrong", text, Code.REFUSED)
    else:
        missed = f", {stats['missed']} were dropped while the disk refused" if stats["missed"] else ""
        yield Finding("daemon's journal", "warning" if missed else "ok", f"{stats['events']} events{missed}")


CHECKS: tuple[Callable[[QuickPeer], Iterator[Finding]], ...] = (_daemon, _round_trip, _figures, _journal)
"""What is looked at once there is a connection."""


@command(
    examples=[
        Example("jet doctor", "look at everything"),
        Example("jet doctor --users users.json --journal log -o jsonl", "and at the files of a daemon, for a script"),
    ]
)
@click.option("--users", "users_file", metavar="FILE", help="a daemon's users file; else that of JET_USERS")
@click.option("--journal", "-j", "folder", metavar="DIR", help="a daemon's journal; else that of JET_JOURNAL")
def doctor(bus: Bus, form: str | None, users_file: str | None, folder: str | None) -> int:
    """Look for what is wrong: this program, this machine, contexts, connection, login, daemon, limits, journal.

    The exit code is 0 if nothing is wrong, otherwise that of what is. Where there is no daemon it looks for one nearby.
    """
    worst = Code.OK
    files = (users_file or os.environ.get("JET_USERS"), folder or os.environ.get("JET_JOURNAL"))
    with Output(("check", "state", "text"), form, value="text") as out:
        for finding in _findings(bus, *files):
            worst = worst or finding.code
            out.put({"check": finding.check, "state": finding.state, "text": finding.text})
    return worst


def _findings(bus: Bus, users: str | None, journal: str | None) -> Iterator[Finding]:
    yield from _program()
    yield from machine.open_files()
    yield from machine.packages()
    if users:
        yield from machine.users_file(users)
    if journal:
        yield from machine.journal_folder(journal)
    yield from _contexts()
    yield _source(bus)
    try:
        with bus.quick() as peer:
            yield Finding(
                "connection", "ok", "there is a daemon" + (f", logged in as {peer.user}" if peer.user else "")
            )
            for check in CHECKS:
                yield from check(peer)
    except JetError as problem:
        yield Finding("connection", "wrong", sentence(problem), code_of(problem))
        if isinstance(problem, NotConnected):
            yield from _nearby(bus)


def _nearby(bus: Bus) -> Iterator[Finding]:
    """Daemons at the usual places of that host, and at the same port in another protocol."""
    address = read_url(bus.url)
    host = f"[{address.host}]" if ":" in address.host else address.host or "localhost"
    usual = [f"jet://{host}:11122", f"ws://{host}:11123", f"jetb://{host}:11124"]
    if address.host in ("", *LOCAL):
        usual.append("unix://@/var/run/jet.socket")
    same = [f"{scheme}://{host}:{address.port}" for scheme in ("jet", "ws", "jetb") if address.port]
    for url in dict.fromkeys([*same, *usual]):
        if url != str(address).rstrip("/"):
            try:
                with Bus(url).quick() as peer:
                    name = peer.daemon.get("name", "unknown")
            except JetError:
                continue
            yield Finding("nearby", "ok", f"there is a daemon ({name}) at {url}; name it with --url or JET_URL")
