"""``jet doctor``: diagnose problems between this machine and the bus."""

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
from jetbus.cli import doctor_checks
from jetbus.cli.command import Example, command
from jetbus.cli.doctor_checks import Finding
from jetbus.cli.exit_codes import Code, describe_error, get_exit_code
from jetbus.cli.output import Output
from jetbus.cli.target import LOCAL, Target, get_contexts_file
from jetbus.errors import JetError, NotConnected, UnknownService
from jetbus.peer.address import read_url
from jetbus.peer.compat import features_of
from jetbus.peer.simple import SimplePeer
from jetbus.rules import parse_rule

ROUNDS = 20
SLOW_MS = 50.0
SHARING_LIMITS = ("turn_us_max",)
"""Limits by which peers take turns; reaching them is normal on a busy bus."""


def _check_program() -> Iterator[Finding]:
    yield Finding("program", "ok", f"jet {jetbus.__version__}, Python {platform.python_version()}")
    if sys.stdout.encoding.lower().replace("-", "") != "utf8":
        yield Finding(
            "terminal", "warning", f"the terminal uses {sys.stdout.encoding}, but paths are UTF-8; set LANG=C.UTF-8"
        )


def _check_contexts() -> Iterator[Finding]:
    file = get_contexts_file()
    if not file.exists():
        yield Finding("contexts", "ok", f"none; `jet context add` creates them in {file}")
    elif stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding(
            "contexts", "warning", f"other users can read {file}, which has passwords; run `chmod 600 {file}`"
        )
    else:
        yield Finding("contexts", "ok", str(file))


def _describe_target(bus: Target) -> Finding:
    named = [name for name in ("JET_URL", "JET_CONTEXT") if os.environ.get(name)]
    user = f" as {bus.user}" if bus.user else ""
    return Finding("bus", "ok", f"{bus.shown_url}{user}{' from ' + named[0] if named else ''}")


def _check_daemon(peer: SimplePeer) -> Iterator[Finding]:
    daemon = peer.daemon
    name, version = daemon.get("name", "unknown"), daemon.get("version", "?")
    if peer.is_jetbus:
        same = version == jetbus.__version__
        text = f"jetd {version}" + ("" if same else f", but jet is {jetbus.__version__}; use the same version of both")
        yield Finding("daemon", "ok" if same else "warning", text)
    else:
        timeouts = "" if features_of(daemon).has_timeouts else "no timeouts, "
        yield Finding("daemon", "ok", f"{name} {version}: {timeouts}no `jet peers`; jet evaluates rules itself")


def _check_round_trip(peer: SimplePeer) -> Iterator[Finding]:
    times_ms = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with suppress(UnknownService):  # lua-jet does not know the service, but its error is a response, too
            peer.ask("info", {})
        times_ms.append(1e3 * (time.perf_counter() - began))
    # A single slow request moves the mean, but not the median.
    middle = sorted(times_ms)[ROUNDS // 2]
    slow = middle > SLOW_MS
    text = f"median {middle:.2f} ms, maximum {max(times_ms):.2f} ms of {ROUNDS}"
    yield Finding(
        "round trip", "warning" if slow else "ok", text + ("; is the network or the daemon busy?" if slow else "")
    )


def _check_figures(peer: SimplePeer) -> Iterator[Finding]:
    if not peer.is_jetbus:
        return
    metrics = peer.get_all(parse_rule("$jet/*"))
    yield Finding(
        "elements", "ok", f"{metrics['$jet/elements']} states and methods, {metrics['$jet/connections']} connections"
    )
    slow = metrics["$jet/slow_peers"]
    text = f"{slow} too slow to read their messages; `jet peers` lists them" if slow else "none"
    yield Finding("slow peers", "warning" if slow else "ok", text)
    hits = metrics["$jet/limit_hits"].items()
    hit = [f"{name} {count} times" for name, count in hits if count and name not in SHARING_LIMITS]
    text = f"{', '.join(hit)} since the start; raise them in the daemon's settings" if hit else "none reached"
    yield Finding("limits", "warning" if hit else "ok", text)


def _check_journal(peer: SimplePeer) -> Iterator[Finding]:
    stats = peer.get_all(parse_rule("$jet/journal/stats")).get("$jet/journal/stats") if peer.is_jetbus else None
    if stats is None:
        return
    if stats["problem"]:
        text = f"the daemon cannot write its journal: {stats['problem']}; free disk space, or make the folder writable"
        yield Finding("daemon's journal", "wrong", text, Code.REFUSED)
    else:
        missed = f", {stats['missed']} events were dropped while the disk refused writes" if stats["missed"] else ""
        yield Finding("daemon's journal", "warning" if missed else "ok", f"{stats['events']} events{missed}")


def _check_web_pages(peer: SimplePeer) -> Iterator[Finding]:
    told = peer.get_all(parse_rule("$jet/*")) if peer.is_jetbus else {}
    if "ws" not in told.get("$jet/listening", {}):
        return
    origins = told.get("$jet/ws_origins", [])
    if "*" in origins:
        text = "every page that a browser shows may use this daemon; name in ws_origins those that may, instead of *"
        yield Finding("web pages", "warning", text)
    else:
        further = f", and of {', '.join(origins)}" if origins else ""
        yield Finding("web pages", "ok", f"only pages of loopback and of the daemon's machine may connect{further}")


CHECKS: tuple[Callable[[SimplePeer], Iterator[Finding]], ...] = (
    _check_daemon,
    _check_round_trip,
    _check_figures,
    _check_web_pages,
    _check_journal,
)
"""Checks that need a connection."""


@command(
    examples=[
        Example("jet doctor", "check everything"),
        Example(
            "jet doctor --users users.json --journal log -o jsonl", "also check the files of a daemon, for a script"
        ),
    ]
)
@click.option("--users", "users_file", metavar="FILE", help="users file of a daemon; default: JET_USERS")
@click.option("--journal", "-j", "folder", metavar="DIR", help="journal of a daemon; default: JET_JOURNAL")
def doctor(bus: Target, form: str | None, users_file: str | None, folder: str | None) -> int:
    """Check this program, this machine, contexts, connection, login, daemon, limits and journal.

    The exit code is 0 if all is well, else that of the first problem. If there is no daemon at the address, the usual
    addresses on the same host are tried.
    """
    worst = Code.OK
    files = (users_file or os.environ.get("JET_USERS"), folder or os.environ.get("JET_JOURNAL"))
    with Output(("check", "state", "text"), form, value="text") as out:
        for finding in _run_checks(bus, *files):
            # The first problem is the one to solve; those behind it often follow from it.
            worst = worst or finding.code
            out.put({"check": finding.check, "state": finding.state, "text": finding.text})
    return worst


def _run_checks(bus: Target, users: str | None, journal: str | None) -> Iterator[Finding]:
    # Checks without a daemon come first, so that they are printed while the connection is tried.
    yield from _check_program()
    yield from doctor_checks.check_open_files()
    yield from doctor_checks.check_packages()
    if users:
        yield from doctor_checks.check_users_file(users)
    if journal:
        yield from doctor_checks.check_journal_folder(journal)
    yield from _check_contexts()
    yield _describe_target(bus)
    try:
        with bus.connect() as peer:
            yield Finding("connection", "ok", "established" + (f", logged in as {peer.user}" if peer.user else ""))
            for check in CHECKS:
                yield from check(peer)
    except JetError as problem:
        yield Finding("connection", "wrong", describe_error(problem), get_exit_code(problem))
        if isinstance(problem, NotConnected):
            yield from _look_nearby(bus)


def _look_nearby(bus: Target) -> Iterator[Finding]:
    """Look for daemons at the usual ports of the host, and at the same port with other protocols."""
    address = read_url(bus.url)
    host = f"[{address.host}]" if ":" in address.host else address.host or "localhost"
    usual = [f"jet://{host}:11122", f"ws://{host}:11123", f"jetb://{host}:11124"]
    if address.host in ("", *LOCAL):
        usual.append("unix://@/var/run/jet.socket")
    same = [f"{scheme}://{host}:{address.port}" for scheme in ("jet", "ws", "jetb") if address.port]
    for url in dict.fromkeys([*same, *usual]):
        if url != str(address).rstrip("/"):
            try:
                # Without the login: a password is not for any daemon that happens to be there.
                with Target(url).connect() as peer:
                    name = peer.daemon.get("name", "unknown")
            except JetError:
                continue
            yield Finding("nearby", "ok", f"found a daemon ({name}) at {url}; select it with --url or JET_URL")
