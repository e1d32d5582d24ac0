"""Measure the peers: PeerAsync next to node-jet's peer, the blocking Peer next to a bare socket.

    python bench/peers.py                 three rounds, about two minutes
    python bench/peers.py --quick         one short round
    python bench/peers.py --rounds 5 --t 2 --strict

All clients talk to the same `jetd` and to the same owner, each a process of its own, on another core than the measured
client where there are two. Figures are per second of the client's CPU time, all its threads, user and kernel, taken by
the client itself after a warm-up. A client that loses a message fails. The clients of a case run in turn.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bars import MISSED, OK, UNKNOWN, Verdict, bars_table
from compare import default_cores, markdown, pin, short
from run import machine, say
from servers import (
    BENCH,
    BUILD,
    NODE_JET,
    UnavailableError,
    die_with_parent,
    install_node_jet,
    jetd,
    program,
    serving,
    stop,
)

from jetbus.peer.handles import COMPILED

TIMES_NODE_JET = 3.0
TIMES_RAW = 2.0
TIMES_CALLBACK = 0.95
"""As fast, within the difference between two runs."""
START_S = 30.0

UVLOOP, ASYNCIO, NODE, BLOCKING, RAW = "PeerAsync, uvloop", "PeerAsync, asyncio", "node-jet", "Peer", "bare socket"
PIPELINED = {
    "set": "set, 100 under way",
    "call": "call, 100 under way",
    "notified": "notifications received",
    "changes": "changes sent",
}
ROUND_TRIP = "set, one after the other"
NOTIFIED = PIPELINED["notified"]
CALLED_BACK = "notifications received, by a callback"
"""Only of ours: node-jet's peer has nothing else, so that this is compared with all its notifications."""


@dataclass(frozen=True)
class Client:
    """A measured client: its name in the table and its command for a case."""

    name: str
    command: Callable[[str, list[str]], list[str]]
    cwd: Path = BENCH


@dataclass(frozen=True)
class Run:
    """Figures of one run of a client."""

    client: str
    case: str
    count: int
    cpu_s: float
    wall_s: float


def python(*options: str) -> Callable[[str, list[str]], list[str]]:
    return lambda port, words: [sys.executable, str(BENCH / "peer_jetbus.py"), port, *words, *options]


def node(port: str, words: list[str]) -> list[str]:
    return [program("node"), str(BENCH / "peer_nodejet.cjs"), port, *words]


OURS = [Client(UVLOOP, python("--loop", "uvloop")), Client(ASYNCIO, python("--loop", "asyncio"))]
THEIRS = Client(NODE, node, BUILD / "node")


Measured = tuple[str, str]
"""A client and a case."""


class Bench:
    """One daemon, one owner, and the figures so far."""

    def __init__(self, port: str, core: int, seconds: float) -> None:
        self.port = port
        self.core = core
        self.seconds = seconds
        self.runs: list[Run] = []
        self.failed: list[Measured] = []

    def measure(self, client: Client, case: str, words: list[str]) -> None:
        command = client.command(self.port, [*words, str(self.seconds), str(max(0.5, self.seconds / 2))])
        with subprocess.Popen(
            command, cwd=client.cwd, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
        ) as process:
            if self.core >= 0:
                pin(process.pid, self.core)
            output, _ = process.communicate(timeout=START_S + 3 * self.seconds)
        try:
            run = Run(client.name, case, **json.loads(output))
        except ValueError:
            self.failed.append((client.name, case))
            say(f"{case}: {client.name} FAILED")
            return
        self.runs.append(run)
        say(f"{case}: {client.name} {short(run.count / run.cpu_s)}/cpu s")

    def round(self, clients: list[Client]) -> None:
        for word, case in PIPELINED.items():
            for client in clients:
                self.measure(client, case, [word])
                if word == "notified" and client in OURS:
                    self.measure(client, CALLED_BACK, ["callback"])
        for name, word in ((BLOCKING, "blocking"), (RAW, "raw")):
            self.measure(Client(name, python()), ROUND_TRIP, [word])

    def figures(self, measured: Measured, figure: Callable[[Run], float]) -> list[float]:
        """One a round."""
        return [figure(run) for run in self.runs if (run.client, run.case) == measured]

    def median(self, measured: Measured, figure: Callable[[Run], float]) -> float | None:
        figures = self.figures(measured, figure)
        return median(figures) if figures else None

    def times(self, measured: Measured, other: Measured, figure: Callable[[Run], float]) -> float | None:
        """How many times the other: the median of the rounds, since a machine is not equally fast in all of them."""
        if measured in self.failed or other in self.failed:
            return None
        pairs = zip(self.figures(measured, figure), self.figures(other, figure), strict=False)  # others may be missing
        ratios = [ours / theirs for ours, theirs in pairs]
        return median(ratios) if ratios else None

    def shown(self, measured: Measured, figure: Callable[[Run], float], other: Measured | None = None) -> str:
        """A figure, and how many times the other's it is."""
        if measured in self.failed:
            return "FAIL"
        ratio = None if other is None else self.times(measured, other, figure)
        return short(self.median(measured, figure)) + ("" if ratio is None else f" ({ratio:.2f}x)")


def per_cpu_s(run: Run) -> float:
    return run.count / run.cpu_s


def cpu_us(run: Run) -> float:
    return run.cpu_s / run.count * 1e6


def wall_us(run: Run) -> float:
    return run.wall_s / run.count * 1e6


def rates_table(bench: Bench) -> str:
    rows = [
        [
            case,
            bench.shown((NODE, case), per_cpu_s),
            *(bench.shown((client, case), per_cpu_s, (NODE, case)) for client in (UVLOOP, ASYNCIO)),
        ]
        for case in PIPELINED.values()
    ]
    return "\n### Messages per second of client CPU\n\n" + markdown(["case", NODE, UVLOOP, ASYNCIO], rows)


def forms_table(bench: Bench) -> str:
    """Iterator versus callback."""
    rows = []
    for client in (UVLOOP, ASYNCIO):
        called = (client, CALLED_BACK)
        iterated = bench.shown((client, NOTIFIED), per_cpu_s, called)
        rows.append([client, bench.shown(called, per_cpu_s), iterated])
    loop = "compiled" if COMPILED else "in Python, since nothing is compiled here"
    title = f"\n### Notifications per second of client CPU, by form; the loop is {loop}\n\n"
    return title + markdown(["peer", "callback", "iterator"], rows)


def round_trip_table(bench: Bench) -> str:
    ours, raw = (BLOCKING, ROUND_TRIP), (RAW, ROUND_TRIP)
    rows = [
        [f"{ROUND_TRIP}: {name}", bench.shown(raw, figure), bench.shown(ours, figure, raw)]
        for name, figure in (("client CPU", cpu_us), ("wall clock", wall_us))
    ]
    return "\n### Microseconds per round trip\n\n" + markdown(["case", RAW, BLOCKING], rows)


def verdicts(bench: Bench) -> list[Verdict]:
    """The bars; PeerAsync counts as it runs with the loop that jetbus brings along."""

    def verdict(
        bar: str, measured: Measured, other: Measured, figure: Callable[[Run], float], kept: Callable[[float], bool]
    ) -> Verdict:
        ratio = bench.times(measured, other, figure)
        if ratio is None:
            return Verdict(bar, "-", MISSED if measured in bench.failed else UNKNOWN)
        return Verdict(bar, f"{ratio:.2f} x", OK if kept(ratio) else MISSED)

    rows = []
    for case, their_case in [*((case, case) for case in PIPELINED.values()), (CALLED_BACK, NOTIFIED)]:
        bar = f"{case}: PeerAsync at least {TIMES_NODE_JET:g} x node-jet's peer"
        rows.append(verdict(bar, (UVLOOP, case), (NODE, their_case), per_cpu_s, lambda times: times >= TIMES_NODE_JET))
    bar = f"{NOTIFIED}: the iterator at least {TIMES_CALLBACK:g} x the callback"
    rows.append(
        verdict(bar, (UVLOOP, NOTIFIED), (UVLOOP, CALLED_BACK), per_cpu_s, lambda times: times >= TIMES_CALLBACK)
    )
    for name, figure in (("CPU", cpu_us), ("wall clock", wall_us)):
        bar = f"{ROUND_TRIP}, {name}: Peer at most {TIMES_RAW:g} x a bare socket"
        rows.append(verdict(bar, (BLOCKING, ROUND_TRIP), (RAW, ROUND_TRIP), figure, lambda times: times <= TIMES_RAW))
    return rows


@contextmanager
def owning(port: str, core: int) -> Iterator[None]:
    """The owner that all clients talk to."""
    command = python()(port, ["owner"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:
        try:
            if core >= 0:
                pin(process.pid, core)
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise UnavailableError("the owner did not start")
            yield
        finally:
            stop(process)


def clients() -> list[Client]:
    """Ours, and node-jet's where npm can install it."""
    try:
        program("node")
        install_node_jet(BUILD / "node")
    except UnavailableError as why:
        say(f"without node-jet: {why}")
        return OURS
    return [THEIRS, *OURS]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians over so many rounds")
    parser.add_argument("--t", type=float, default=1.5, metavar="SECONDS", help="seconds measured per run")
    parser.add_argument("--quick", action="store_true", help="one round of 0.5 s runs")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--jetd", type=Path, default=Path(sys.executable).with_name("jetd"), metavar="PATH")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.t = 1, 0.5
    if args.rounds < 1 or not 0 < args.t <= 60:
        parser.error("at least one round, of more than 0 and at most 60 s")
    return args


def main() -> int:
    args = arguments()
    os.environ["PATH"] += f":{Path(sys.executable).parent}"  # a Node.js from PyPI is there
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    core, other_core = default_cores()
    measured = clients()
    try:
        with serving(jetd(args.jetd.absolute())) as (daemon, *_):
            if daemon.pid and other_core >= 0:
                pin(daemon.pid, other_core)
            port = daemon.address.rpartition(":")[2]
            bench = Bench(port, core, args.t)
            with owning(port, other_core):
                for number in range(args.rounds):
                    say(f"round {number + 1} of {args.rounds}")
                    bench.round(measured[number % len(measured) :] + measured[: number % len(measured)])
    except UnavailableError as why:
        sys.exit(f"bench: {why}")
    rows = verdicts(bench)
    head = f"## The peers\n\n{machine()}\n\nnode-jet {NODE_JET}; ratios in brackets are times {NODE} and times {RAW}.\n"
    text = head + rates_table(bench) + forms_table(bench) + round_trip_table(bench) + bars_table(rows)
    print(text)
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    (folder / time.strftime("peers-%Y%m%d-%H%M%S.md")).write_text(text)
    return 1 if args.strict and any(row.verdict == MISSED for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
