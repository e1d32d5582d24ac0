"""`make bench`: measure our daemon next to node-jet's and next to the brokers this machine has.

    python bench/run.py                          everything, ten to fifteen minutes
    python bench/run.py --quick                  one short round
    python bench/run.py --only fanout-100,same-100 --rounds 5 --t 2 --without mosquitto
    python bench/run.py --only binary            the cases of the binary protocol's bars

Compiles the C programs, starts every daemon on a free loopback port, runs the cases interleaved, prints
Markdown tables and at the end the bars, and keeps both under bench/results/. bench/README.md explains the
cases are.
"""

import argparse
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bars import MISSED, OURS, bars_table, verdicts
from compare import (
    CASES,
    Daemon,
    Result,
    Settings,
    append_raw,
    chosen_cases,
    default_cores,
    interleaved,
    measure,
    progress,
    tables,
)
from servers import BENCH, Kind, UnavailableError, compile_c, kinds, serving, version_of

FILES_MAX = 20_000  # open files: crowd has 1000 connections, the default limit is often 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="CASES", help="comma separated cases, or a group: binary")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians over so many rounds")
    parser.add_argument("--t", type=float, default=1.5, metavar="SECONDS", help="seconds measured per run")
    parser.add_argument("--without", default="", metavar="NAMES", help="comma separated daemons to leave out")
    parser.add_argument("--quick", action="store_true", help="one round of 0.5 s runs")
    parser.add_argument("--raw", type=Path, metavar="FILE", help="append every result to this JSONL file, too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--jetd", type=Path, default=Path(sys.executable).with_name("jetd"), metavar="PATH")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.t = 1, 0.5
    if args.rounds < 1 or not 0 < args.t <= 60:
        parser.error("at least one round, of more than 0 and at most 60 s")
    return args


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen_kinds(jetd: Path, without: str) -> list[Kind]:
    every = kinds(jetd.absolute())
    names = [kind.name for kind in every]
    left_out = [name for name in without.split(",") if name]
    unknown = [name for name in left_out if name not in names]
    if unknown:
        sys.exit(f"no such daemon: {', '.join(unknown)}\nthere are: {', '.join(names)}")
    return [kind for kind in every if kind.name not in left_out]


class Bench:
    """The servers of one benchmark and the figures so far."""

    def __init__(self, settings: Settings, rounds: int, keep: Callable[[Result], None]) -> None:
        self.settings = settings
        self.rounds = rounds
        self.keep = keep
        self.results: list[Result] = []
        self.started: list[Kind] = []
        self.names: list[str] = []
        self.absent: list[str] = []

    def run(self, chosen: list[Kind], cases: list[str]) -> None:
        with ExitStack() as stack:
            daemons = list(self.start(stack, chosen))
            rates = [name for name in cases if CASES[name].kind == "rate"]
            for number, case, daemon in interleaved(self.rounds, rates, daemons) if rates else ():
                self.note(f"{number + 1}/{self.rounds}", measure(self.settings, daemon, case))
        self.run_fresh([name for name in cases if CASES[name].fresh])

    def start(self, stack: ExitStack, chosen: list[Kind]) -> Iterator[Daemon]:
        for kind in chosen:
            try:
                daemons = stack.enter_context(serving(kind))
            except UnavailableError as why:
                if kind.name == OURS:
                    raise
                say(f"without {kind.name}: {why}")
                self.absent.append(f"{kind.name}: {why}")
                continue
            self.started.append(kind)
            self.names += [daemon.name for daemon in daemons]
            yield from daemons

    def run_fresh(self, cases: list[str]) -> None:
        """Each run has a daemon of its own: memory of both Jet daemons, the crowd of ours."""
        for case in cases:
            for kind in self.started:
                if kind.proto or (CASES[case].kind == "crowd" and kind.name != OURS):
                    continue
                rounds = 1 if CASES[case].kind == "crowd" else self.rounds
                for number in range(rounds):
                    with serving(kind) as daemons:
                        self.note(f"{number + 1}/{rounds}", measure(self.settings, daemons[0], case))

    def note(self, label: str, result: Result) -> None:
        self.results.append(result)
        self.keep(result)
        progress(label, result)

    def report(self) -> str:
        """Machine, versions and tables; the bars come last."""
        versions = [f"- {kind.name} {version_of(kind)}".rstrip() for kind in self.started]
        absent = [f"- left out, {text}" for text in self.absent]
        head = "\n".join(["## Benchmark", "", machine(), "", *versions, *absent, ""])
        reference = "node-jet" if "node-jet" in self.names else OURS
        body = tables(self.results, self.names, reference)
        return f"{head}\nRatios in brackets are times {reference}.\n{body}{bars_table(verdicts(self.results))}"


def machine() -> str:
    """Return the facts that a reader needs to judge the figures; a load near the number of cores means a busy machine.

    Where Python comes from matters: one that was compiled without profile-guided optimisation is slower.
    """
    now, python = time.strftime("%Y-%m-%d %H:%M"), f"{platform.python_version()} of {sys.base_prefix}"
    cores, load = os.cpu_count(), os.getloadavg()[0]
    return f"{now}, {platform.machine()}, {cores} cores, load {load:.1f}, Python {python}"


def open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> int:
    args = arguments()
    if sys.platform != "linux":
        sys.exit("the benchmark reads CPU time and memory from /proc: it needs Linux")
    cases, chosen = chosen_cases(args.only), chosen_kinds(args.jetd, args.without)
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    raw = folder / time.strftime("%Y%m%d-%H%M%S.jsonl")

    def keep(result: Result) -> None:
        append_raw(raw, result)
        append_raw(args.raw, result)

    open_files()
    os.environ["PATH"] += f":{Path(sys.executable).parent}"  # a Node.js from PyPI is there
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        compile_c("nulljet")
        settings = Settings(compile_c("jetload"), args.t, 0.3, 90, *default_cores())
    except (UnavailableError, subprocess.CalledProcessError) as why:
        sys.exit(f"bench: {why}")
    bench = Bench(settings, args.rounds, keep)
    stopped = False
    try:
        bench.run(chosen, cases)
    except UnavailableError as why:
        sys.exit(f"bench: {why}")
    except KeyboardInterrupt:
        stopped = True
        say("\nstopped; this is what was measured until now")
    text = bench.report()
    print(text)
    raw.with_suffix(".md").write_text(text)
    say(f"kept in bench/results/{raw.stem}.md and .jsonl")
    if stopped:
        return 130
    return 1 if args.strict and any(row.verdict == MISSED for row in verdicts(bench.results)) else 0


if __name__ == "__main__":
    sys.exit(main())
