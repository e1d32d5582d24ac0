"""Run jetload's cases against several daemons, interleaved, and print medians and ratios as Markdown.

Lives here: the list of cases, one measured run, the tables. The daemons run already; run.py starts them.

    python bench/compare.py --jetload bench/build/jetload ours=127.0.0.1:11122:PID other=127.0.0.1:11132:PID
    python bench/compare.py --only fanout-10,set-w1 --rounds 5 --t 2 a=... b=...
    python bench/compare.py --only fanout-10 a=127.0.0.1:11122:PID broker=mqtt@127.0.0.1:1883:PID

A daemon is NAME=[PROTO@]HOST:PORT[:PID]. With a PID the daemon is pinned to --daemon-core and its CPU time
and memory are measured. PROTO is binary (Jet's binary protocol), mqtt, nats, redis, null (nulljet) or journal (a
Jet daemon that keeps one), each for the cases it is about. The first daemon is the reference of the ratios (or
--ref NAME). After a run the next one waits until the daemon is idle again. Linux only (/proc), standard library only.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Result: TypeAlias = dict[str, Any]  # jetload's line of JSON, plus "daemon" and "case"


@dataclass(frozen=True)
class Case:
    """One command line of jetload and the kind of figure it is run for."""

    args: tuple[str, ...]
    kind: str = "rate"  # rate | memory (needs a fresh daemon) | crowd (needs a fresh daemon, runs once)
    repeat: int = 1  # runs a round: a case that is over in a moment needs more than one
    least_s: float = 0.0  # measure at least this long

    @property
    def fresh(self) -> bool:
        """A daemon that has worked already has free heap, which hides the cost of states and connections."""
        return self.kind != "rate"


CASES = {
    "fanout-1": Case(("fanout", "--k", "1")),
    "fanout-10": Case(("fanout", "--k", "10")),
    "fanout-100": Case(("fanout", "--k", "100")),
    "same-100": Case(("fanout", "--k", "100", "--sameid", "1")),
    "latency-1": Case(("fanout", "--k", "1", "--w", "1")),
    "states": Case(("states", "--s", "10000")),
    "adds": Case(("adds", "--s", "10000"), repeat=5),
    "adds-batch50": Case(("adds", "--s", "10000", "--batch", "50"), repeat=5),
    "adds-rules-0": Case(("adds", "--s", "10000", "--f", "0"), repeat=5),
    "adds-rules-1000": Case(("adds", "--s", "10000", "--f", "1000"), repeat=3),
    "rules-10": Case(("rules", "--f", "10", "--s", "10000")),
    "rules-100": Case(("rules", "--f", "100", "--s", "10000")),
    "rules-1000": Case(("rules", "--f", "1000", "--s", "10000")),
    "set-w1": Case(("set", "--w", "1")),
    "set-w100": Case(("set", "--w", "100")),
    "setchange-w1": Case(("set", "--w", "1", "--change", "1")),
    "setchange-w100": Case(("set", "--w", "100", "--change", "1")),
    "call-w1": Case(("call", "--w", "1")),
    "call-w100": Case(("call", "--w", "100")),
    "big-2k": Case(("bigvalue", "--k", "10", "--size", "2000", "--w", "100")),
    "big-20k": Case(("bigvalue", "--k", "10", "--size", "20000", "--w", "20")),
    "large-10": Case(("large", "--k", "10", "--size", "20000", "--w", "20")),
    "large-50": Case(("large", "--k", "50", "--size", "20000", "--w", "20")),
    "connect": Case(("connect", "--c", "1000"), repeat=5),
    "memory-states": Case(("adds", "--s", "100000"), "memory"),
    "memory-conns": Case(("connect", "--c", "1000"), "memory"),
    "crowd": Case(("crowd", "--c", "1000", "--s", "100000", "--f", "1000", "--rate", "10000"), "crowd", least_s=5),
}
LARGE_FETCHERS = (10, 50)  # of the two cases large-N
GROUPS = {
    "binary": ("fanout-1", "fanout-10", "fanout-100", "set-w1", "set-w100", "large-10", "large-50"),
    "journal": ("fanout-10", "states"),
}
UNDERSTOOD = {  # cases of a protocol that cannot, or need not, do everything
    "binary": [CASES[name].args for name in GROUPS["binary"]],
    "journal": [CASES[name].args for name in GROUPS["journal"]],
    "null": [case.args for case in CASES.values() if case.args[0] in ("fanout", "bigvalue", "large", "set", "call")],
}
PUBLISHED = [case.args for case in CASES.values() if case.args[0] == "fanout"]  # by the brokers


@dataclass(frozen=True)
class Daemon:
    """Address of a daemon, its protocol ("" is Jet) and its process (0: unknown)."""

    name: str
    address: str
    proto: str = ""
    pid: int = 0

    @classmethod
    def parse(cls, text: str) -> "Daemon":
        name, _, rest = text.partition("=")
        proto, _, where = rest.rpartition("@")
        host, _, port = where.partition(":")
        port, _, pid = port.partition(":")
        return cls(name, f"{host}:{port}", proto, int(pid or 0))

    def understands(self, case: Case) -> bool:
        return not self.proto or case.args in UNDERSTOOD.get(self.proto, PUBLISHED)

    def wait_ready(self, seconds: float = 10) -> bool:
        host, _, port = self.address.rpartition(":")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError):
                socket.create_connection((host, int(port)), 1).close()
                time.sleep(0.05)
                return True
            time.sleep(0.05)
        return False

    def settle(self, seconds: float = 20) -> None:
        """Wait until the daemon has cleaned up after the last run."""
        until = time.monotonic() + seconds
        before = cpu_ns(self.pid)
        while time.monotonic() < until:
            time.sleep(0.1)
            after = cpu_ns(self.pid)
            if after - before < 2_000_000:
                return
            before = after


@dataclass(frozen=True)
class Settings:
    """How every run of a comparison is made."""

    jetload: Path
    t_s: float = 1.5
    warm_s: float = 0.3
    limit_s: float = 90
    core: int = -1
    daemon_core: int = -1


def default_cores() -> tuple[int, int]:
    """One core for jetload and another one for the daemons, or -1 (any) where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[1], cores[0]) if len(cores) > 1 else (-1, -1)


def cpu_ns(pid: int) -> int:
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


def pin(pid: int, core: int) -> None:
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})
    except OSError as problem:
        print(f"cannot pin {pid}: {problem}", file=sys.stderr)


def command_of(settings: Settings, daemon: Daemon, case: Case) -> list[str]:
    command = [str(settings.jetload), daemon.address, *case.args]
    command += ["--t", str(max(settings.t_s, case.least_s)), "--warm", str(settings.warm_s)]
    if daemon.pid:
        command += ["--pid", str(daemon.pid)]
    if daemon.proto not in ("", "null", "journal"):
        command += ["--proto", daemon.proto]
    return command


def measure(settings: Settings, daemon: Daemon, name: str) -> Result:
    """One run of one case. A run that fails is a result too, with "ok" false and a reason."""
    daemon.wait_ready()
    if daemon.pid and settings.daemon_core >= 0:
        pin(daemon.pid, settings.daemon_core)
    command = command_of(settings, daemon, CASES[name])
    result: Result
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                if settings.core >= 0:
                    pin(process.pid, settings.core)
                output, _ = process.communicate(timeout=settings.limit_s)
            except BaseException:
                process.kill()
                raise
        result = json.loads(output.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = {"ok": False, "why": f"no result within {settings.limit_s} s"}
    except (ValueError, IndexError):
        result = {"ok": False, "why": "no output"}
    if daemon.pid:
        daemon.settle()
    return result | {"daemon": daemon.name, "case": name}


def progress(label: str, result: Result) -> None:
    tail = "" if result["ok"] else f" NOT OK {json.dumps(result)}"
    rate = short(result.get("per_cpu_s") or None)
    print(f"{label} {result['case']} {result['daemon']}: {rate}/cpu s{tail}", file=sys.stderr, flush=True)


def interleaved(rounds: int, cases: Iterable[str], daemons: Sequence[Daemon]) -> list[tuple[int, str, Daemon]]:
    """Every case against every daemon, the daemons in turn and each round starting with another one."""
    return [
        (number, case, daemon)
        for number in range(rounds)
        for case in cases
        for _ in range(CASES[case].repeat)
        for daemon in [*daemons[number % len(daemons) :], *daemons[: number % len(daemons)]]
        if daemon.understands(CASES[case])
    ]


def median(results: Iterable[Result], daemon: str, case: str, key: str) -> float | None:
    """Median over the runs that finished properly; None when none did. KEY/spread: (max - min) / median."""
    name, _, spread = key.partition("/")
    mine = (r for r in results if r["daemon"] == daemon and r["case"] == case and r["ok"])
    values = [float(r[name]) for r in mine if name in r]
    if not values:
        return None
    middle = statistics.median(values)
    if spread:
        return (max(values) - min(values)) / middle if middle else None
    return middle


def failures(results: Iterable[Result], daemon: str, case: str) -> list[str]:
    return [
        r.get("why") or r.get("first_error") or "wrong count"
        for r in results
        if r["daemon"] == daemon and r["case"] == case and not r["ok"]
    ]


def short(value: float | None) -> str:
    if value is None:
        return "-"
    for above, divisor, form in ((1e6, 1e6, "{:.2f} M"), (1e4, 1e3, "{:.0f} k"), (1e3, 1e3, "{:.1f} k")):
        if value >= above:
            return form.format(value / divisor)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in [head, *rows]]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines) + "\n"


def table(title: str, results: list[Result], names: list[str], cases: Iterable[str], key: str, ref: str = "") -> str:
    """One Markdown table, a row a case and a column a daemon; empty when nothing was measured."""
    rows = []
    for case in cases:
        cells = [median(results, name, case, key) for name in names]
        if not any(cells):
            continue
        base = median(results, ref, case, key) if ref else None
        texts = []
        for name, cell in zip(names, cells, strict=True):
            text = short(cell)
            if cell is None and failures(results, name, case):
                text = "FAIL"
            elif base and cell is not None and name != ref:
                text += f" ({cell / base:.2f}x)"
            texts.append(text)
        rows.append([case, *texts])
    return f"\n### {title}\n\n{markdown(['case', *names], rows)}" if rows else ""


def tables(results: list[Result], names: list[str], ref: str) -> str:
    """Everything there is to say about a set of results."""
    rates = [name for name, case in CASES.items() if case.kind == "rate"]
    quick = [name for name in rates if name.endswith("-w1") or name in ("latency-1", "connect")]
    memory = [name for name, case in CASES.items() if case.kind == "memory"]
    texts = [
        table("Messages per second of daemon CPU", results, names, rates, "per_cpu_s", ref),
        table("Messages per second (wall clock)", results, names, rates, "msgs_per_s", ref),
        table("Latency p50, microseconds", results, names, quick, "p50_us", ref),
        table("Latency p99, microseconds", results, names, quick, "p99_us", ref),
        table("Adds per second during setup (wall clock)", results, names, rates, "adds_per_s", ref),
        table(
            "Fetched states per second, fetch of all (wall clock)",
            results,
            names,
            rates,
            "fetched_per_s",
            ref,
        ),
        table("Resident KB per idle connection, fresh daemon", results, names, memory, "kb_per_conn", ref),
        table("Resident bytes per state, fresh daemon", results, names, memory, "bytes_per_state", ref),
        table("Daemon CPU share (1.00 = daemon is the limit)", results, names, rates, "daemon_cpu"),
        table("Generator CPU share", results, names, rates, "gen_cpu"),
        table("Spread of the rounds, (max - min) / median", results, names, rates, "per_cpu_s/spread"),
        large_table(results, names),
        failed_runs(results, names),
    ]
    return "".join(texts)


def large_us(results: list[Result], daemon: str) -> float | None:
    """Microseconds of daemon CPU that each further fetcher adds to a change of 20 KB."""
    few, many = LARGE_FETCHERS
    rates = [median(results, daemon, f"large-{fetchers}", "per_cpu_s") for fetchers in LARGE_FETCHERS]
    if not rates[0] or not rates[1]:
        return None
    return (many / rates[1] - few / rates[0]) / (many - few) * 1e6


def large_table(results: list[Result], names: list[str]) -> str:
    cells = [large_us(results, name) for name in names]
    few, many = LARGE_FETCHERS
    title = f"Daemon CPU per change of 20 KB and further fetcher, between {few} and {many}, microseconds"
    return f"\n### {title}\n\n{markdown(names, [[short(cell) for cell in cells]])}" if any(cells) else ""


def failed_runs(results: list[Result], names: list[str]) -> str:
    bad = [(n, c, whys) for n in names for c in CASES if (whys := failures(results, n, c))]
    lines = [f"- {name}, {case}: {len(whys)} x {whys[0]}\n" for name, case, whys in bad]
    return "\n### Failed runs\n\n" + "".join(lines) if lines else ""


def chosen_cases(only: str, skip: str = "") -> list[str]:
    """The cases named, by themselves or as a group, or all; a name that is none ends the program."""
    only = ",".join(part for name in only.split(",") for part in GROUPS.get(name, (name,)))
    unknown = [name for name in f"{only},{skip}".split(",") if name and name not in CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}\nthere are: {', '.join([*CASES, *GROUPS])}")
    wanted = only.split(",") if only else list(CASES)
    return [name for name in CASES if name in wanted and name not in skip.split(",")]


def append_raw(file: Path | None, result: Result) -> None:
    if file:
        with file.open("a") as lines:
            lines.write(json.dumps(result) + "\n")


def main() -> None:
    core, daemon_core = default_cores()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("daemons", nargs="*", type=Daemon.parse, help="NAME=[PROTO@]HOST:PORT[:PID]")
    parser.add_argument("--jetload", type=Path, default=Path(__file__).parent / "build/jetload")
    parser.add_argument("--only", default="", help="comma separated cases")
    parser.add_argument("--skip", default="", help="comma separated cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--t", type=float, default=1.5, help="seconds measured per run")
    parser.add_argument("--warm", type=float, default=0.3, help="seconds before that")
    parser.add_argument("--limit", type=float, default=90, help="give up on a run after so many seconds")
    parser.add_argument("--core", type=int, default=core, help="core of jetload, -1: any")
    parser.add_argument("--daemon-core", type=int, default=daemon_core, help="core of daemons, -1: any")
    parser.add_argument("--ref", default="", help="reference of the ratios")
    parser.add_argument("--raw", type=Path, help="append every result to this JSONL file")
    parser.add_argument("--read", type=Path, help="only print the tables of such a file")
    args = parser.parse_args()

    results: list[Result] = []
    if args.read:
        results = [json.loads(line) for line in args.read.read_text().splitlines()]
    elif not args.daemons:
        parser.error("name at least one daemon")
    else:
        settings = Settings(args.jetload, args.t, args.warm, args.limit, args.core, args.daemon_core)
        for number, case, daemon in interleaved(args.rounds, chosen_cases(args.only, args.skip), args.daemons):
            result = measure(settings, daemon, case)
            results.append(result)
            append_raw(args.raw, result)
            progress(f"{number + 1}/{args.rounds}", result)
    names = [daemon.name for daemon in args.daemons] or list(dict.fromkeys(r["daemon"] for r in results))
    if names:
        print(tables(results, names, args.ref or names[0]))


if __name__ == "__main__":
    main()
