"""A bus under everything at once, for minutes: `make soak MINUTES=5`.

    .venv/bin/python bench/soak.py --minutes 5 --chart soak.svg

A real `jetd` with a journal has 20,000 states with numbers that only ever count up by one. 300 peers join
and leave: most are healthy, some read slowly, some never, some attack (tests/support/siege.py). A process of its own
has a request answered again and again, and tells how long each took.

Checks:

- A healthy peer with `every` sees each number exactly once and in order; one without may miss some (conflation), but
  never goes back; when the owners rest, each of them has the latest number of every state that it fetches.
- The journal has every change of every state, in order.
- p99 of the requests and the memory of the daemon stay below their bounds.

The chart shows the last two over time. The exit code is 0 if all of it holds, else 1. Beside the minutes asked for, the
start, the rest of the owners and the comparison at the end take seconds, and have bounds; where one is exceeded, or an
owner is closed, that is a problem and the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from jetbus import journal
from support import siege
from support.daemon import Daemon
from support.wire import Closed, TcpWire

OWNERS = 20
ATTACK_S = 3.0
ATTACKERS = "127.0.0.2"
"""Address of the attackers: what one address may have is limited, and healthy peers of an address share that."""
CHANGES_PER_S = 500
PROBE_EVERY_S = 0.02
PROBE_WITHIN_S = 10.0
SAMPLE_EVERY_S = 2.0
START_WITHIN_S = 120.0
"""The owners have to add all states within this time."""
REST_WITHIN_S = 60.0
"""At the end the last change of each owner has to be answered within this time."""
SETTLE_WITHIN_S = 60.0
"""Then all readers have to come to the same numbers within this time."""
KINDS = {"every": 0.3, "latest": 0.56, "slow": 0.06, "stuck": 0.04, "hostile": 0.04}
"""Shares of the peers; at least one peer is of each kind."""

Address = tuple[str, int]


class Sample(NamedTuple):
    """One point of the chart."""

    at_s: float
    memory_mb: float
    p99_ms: float


@dataclass
class Findings:
    """Everything that was seen so far; `problems` are reasons to fail."""

    events: int = 0
    joined: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def fail(self, problem: str) -> None:
        """Note a problem; the first few are enough."""
        if len(self.problems) < 20:
            self.problems.append(problem)


class Numbers:
    """The states, with the owner of each and its present number."""

    def __init__(self, states: int) -> None:
        self.each = states // OWNERS
        self.now = [[0] * self.each for _ in range(OWNERS)]

    def path(self, owner: int, state: int) -> str:
        return f"soak/{owner}/{state}"


class Connection:
    """A peer of the classic dialect over TCP, without any comfort."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: Address, limit: int = 1 << 16) -> Connection:
        return cls(*await asyncio.open_connection(*address, limit=limit))

    async def send(self, message: Any) -> None:
        data = msgspec.json.encode(message)
        self.writer.write(struct.pack(">I", len(data)) + data)
        await self.writer.drain()

    async def receive(self) -> list[Any]:
        """Return the messages of the next frame."""
        (length,) = struct.unpack(">I", await self.reader.readexactly(4))
        message = msgspec.json.decode(await self.reader.readexactly(length))
        return message if isinstance(message, list) else [message]

    def close(self) -> None:
        self.writer.transport.abort()


async def own(address: Address, numbers: Numbers, owner: int, resting: asyncio.Event, owned: asyncio.Barrier) -> None:
    """Own a part of the states and change them at random, at a steady pace, until it is time to rest."""
    line, chance = await Connection.open(address), random.Random(owner)
    adding = [
        {"id": state, "method": "add", "params": {"path": numbers.path(owner, state), "value": 0}}
        for state in range(numbers.each)
    ]
    answered = 0
    for first in range(0, len(adding), 100):
        await line.send(adding[first : first + 100])
    while answered < len(adding):
        answered += len(await line.receive())
    await owned.wait()
    last_id, pace = 0, OWNERS / CHANGES_PER_S
    while not resting.is_set():
        state = chance.randrange(numbers.each)
        numbers.now[owner][state] += 1
        params = {"path": numbers.path(owner, state), "value": numbers.now[owner][state]}
        last_id += 1
        await line.send({"id": last_id, "method": "change", "params": params})
        await asyncio.sleep(pace)
    while not any(answer.get("id") == last_id for answer in await line.receive()):
        pass
    await owned.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    line.close()


class Reader:
    """A peer that fetches the states of one owner and checks every number that it is told."""

    def __init__(self, kind: str, numbers: Numbers, findings: Findings, chance: random.Random) -> None:
        self.kind, self.numbers, self.findings, self.chance = kind, numbers, findings, chance
        self.owner = chance.randrange(OWNERS)
        self.seen: dict[str, int] = {}

    async def run(self, address: Address, life_s: float, pause_s: float = 0.0) -> None:
        """Join, read for a time, leave. A slow peer may be closed; a healthy one never."""
        line = await Connection.open(address, limit=1 << 12 if pause_s else 1 << 16)
        try:
            rule = {"id": "f", "path": {"startsWith": f"soak/{self.owner}/"}, "every": self.kind == "every"}
            await line.send({"id": 1, "method": "fetch", "params": rule})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(life_s):
                    while True:
                        for message in await line.receive():
                            self.check(message)
                        if pause_s:
                            await asyncio.sleep(pause_s)
        except (OSError, asyncio.IncompleteReadError):
            if not pause_s:
                self.findings.fail(f"a healthy peer ({self.kind}) was closed by the daemon")
        finally:
            line.close()

    def is_current(self) -> bool:
        """Tell whether it has the latest number of all that it fetches."""
        now = self.numbers.now[self.owner]
        return len(self.seen) == len(now) and all(
            self.seen[self.numbers.path(self.owner, state)] == number for state, number in enumerate(now)
        )

    def check(self, message: Any) -> None:
        if message.get("method") != "f":
            if "error" in message:
                self.findings.fail(f"a healthy peer was refused: {message}")
            return
        events = message["params"]
        for event in events if isinstance(events, list) else [events]:
            self.findings.events += 1
            path, number, before = event["path"], event["value"], self.seen.get(event["path"])
            self.seen[path] = number
            if before is None:
                continue
            if number <= before:
                self.findings.fail(f"{path} went from {before} to {number} for a peer ({self.kind})")
            elif self.kind == "every" and number != before + 1:
                self.findings.fail(f"{path} went from {before} to {number} for a peer that asked for every change")


async def be_stuck(address: Address, life_s: float) -> None:
    """Fetch everything and never read."""
    line = await Connection.open(address, limit=1 << 10)
    line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        await line.send({"id": 1, "method": "fetch", "params": {"id": "f"}})
        await asyncio.sleep(life_s)
    line.close()


async def attack(name: str, daemon: Daemon) -> None:
    """Attack the daemon for a while from a process of its own, which takes no time from the healthy peers here."""
    process = siege.start(daemon.address("tcp"), daemon.address("ws"), ATTACK_S, [name], ATTACKERS)
    try:
        await asyncio.sleep(ATTACK_S)
    finally:
        process.kill()
        process.wait()


async def keep_joining(kind: str, seed: int, daemon: Daemon, numbers: Numbers, findings: Findings) -> None:
    """Be one peer after the other of a kind."""
    chance, address = random.Random(seed), daemon.address("tcp")
    while True:
        findings.joined[kind] += 1
        life_s = chance.uniform(5, 30)
        if kind == "hostile":
            name = chance.choice(list(siege.ATTACKS))
            findings.joined[f"attack: {name}"] += 1
            await attack(name, daemon)
            await asyncio.sleep(chance.uniform(0, 2))
        elif kind == "stuck":
            with contextlib.suppress(OSError):
                await be_stuck(address, life_s)
        else:
            reader = Reader(kind, numbers, findings, chance)
            await reader.run(address, life_s, chance.uniform(0.05, 0.5) if kind == "slow" else 0.0)


def probe(host: str, port: int) -> None:
    """Have a set answered by an owner again and again, and print how many milliseconds each took."""
    with TcpWire((host, port)) as owner, TcpWire((host, port)) as setter:
        owner.result("add", {"path": "probe", "value": 0})
        while True:
            begun = time.perf_counter()
            setter.send({"id": 1, "method": "set", "params": {"path": "probe", "value": 1}})
            asked = owner.receive(PROBE_WITHIN_S)
            owner.send({"id": asked["id"], "result": True})
            assert setter.receive(PROBE_WITHIN_S)["result"] is True
            took_s = time.perf_counter() - begun
            print(f"{took_s * 1000:.3f}", flush=True)
            time.sleep(PROBE_EVERY_S)


async def sample(daemon: Daemon, findings: Findings, begun_s: float) -> None:
    """Note memory and p99 again and again, from a probe in a process of its own."""
    host, port = daemon.address("tcp")
    probing = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--probe", f"{host}:{port}"), stdout=asyncio.subprocess.PIPE
    )
    assert probing.stdout is not None
    fresh: list[float] = []
    due_s = time.monotonic() + SAMPLE_EVERY_S
    try:
        while line := await probing.stdout.readline():
            fresh.append(float(line))
            if time.monotonic() >= due_s:
                findings.latencies_ms += fresh
                at_s = time.monotonic() - begun_s
                findings.samples.append(Sample(at_s, memory_mb(daemon.process.pid), percentile(fresh, 0.99)))
                fresh, due_s = [], time.monotonic() + SAMPLE_EVERY_S
        findings.fail(f"a healthy set was not answered within {PROBE_WITHIN_S:g} s, or its peer was closed")
    finally:
        findings.latencies_ms += fresh
        with contextlib.suppress(ProcessLookupError):
            probing.kill()
        await probing.wait()


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def percentile(numbers: Sequence[float], share: float) -> float:
    """Return the number below which this share of the numbers is."""
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * share))] if numbers else 0.0


async def settle(daemon: Daemon, numbers: Numbers, findings: Findings) -> None:
    """While the owners rest, peers that join now and peers that were there must come to the same numbers."""
    readers = [
        Reader(kind, numbers, findings, random.Random(seed)) for seed in range(3) for kind in ("every", "latest")
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.run(daemon.address("tcp"), SETTLE_WITHIN_S)) for reader in readers]
        deadline = time.monotonic() + SETTLE_WITHIN_S
        while not all(reader.is_current() for reader in readers) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
    for reader in readers:
        if not reader.is_current():
            findings.fail(f"a peer ({reader.kind}) does not have the latest numbers of owner {reader.owner}")


async def soak(daemon: Daemon, minutes: float, peers: int, numbers: Numbers, findings: Findings) -> None:
    """Load the daemon for so many minutes."""
    resting, owned, begun_s = asyncio.Event(), asyncio.Barrier(OWNERS + 1), time.monotonic()
    owners = [
        asyncio.create_task(own(daemon.address("tcp"), numbers, owner, resting, owned)) for owner in range(OWNERS)
    ]
    if not await meet(owned, owners, START_WITHIN_S):
        findings.fail(f"an owner was closed, or did not add its states within {START_WITHIN_S:g} s")
        await _end(owners)
        return
    kinds = [kind for kind, share in KINDS.items() for _ in range(max(1, round(peers * share)))]
    crowd = [
        asyncio.create_task(keep_joining(kind, seed, daemon, numbers, findings)) for seed, kind in enumerate(kinds)
    ]
    watching = asyncio.create_task(sample(daemon, findings, begun_s))
    ended, _ = await asyncio.wait([*owners, *crowd, watching], timeout=60 * minutes, return_when="FIRST_COMPLETED")
    for problem in (task.exception() for task in ended):
        if problem is not None:
            findings.fail(f"a peer ended: {problem!r}")
    await _end([*crowd, watching])
    resting.set()
    if await meet(owned, owners, REST_WITHIN_S):
        await settle(daemon, numbers, findings)
    else:
        findings.fail(f"an owner was closed, or its last change was not answered within {REST_WITHIN_S:g} s")
    await _end(owners)


async def meet(barrier: asyncio.Barrier, owners: list[asyncio.Task[None]], within_s: float) -> bool:
    """Wait until all owners have come to the barrier; return False if one has ended, or if it takes too long."""
    meeting = asyncio.ensure_future(barrier.wait())
    await asyncio.wait([meeting, *owners], timeout=within_s, return_when="FIRST_COMPLETED")
    met = meeting.done()
    meeting.cancel()
    return met


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def check_journal(directory: Path, numbers: Numbers, findings: Findings) -> None:
    """The journal must have each number of each state, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    events = journal.open(directory).read("soak/**", columns=("path", "event", "value"))
    for batch in events:
        for path, event, value in zip(
            *(batch.column(name).to_pylist() for name in ("path", "event", "value")), strict=True
        ):
            if event in ("add", "change") and path.startswith("soak/"):
                found[path].append(json.loads(value))
    for owner, states in enumerate(numbers.now):
        for state, number in enumerate(states):
            path = numbers.path(owner, state)
            if found[path] != list(range(number + 1)):
                findings.fail(
                    f"the journal has {found[path][-5:]} as the last numbers of {path}, which came to {number}"
                )


def draw(samples: Sequence[Sample], memory_max_mb: float, p99_max_ms: float) -> str:
    """Return a chart of memory and p99 over time, each with its bound, as SVG."""
    width, height, left = 800, 180, 70
    end_s = max((each.at_s for each in samples), default=1.0)

    def panel(top: int, title: str, values: list[float], bound: float, colour: str) -> str:
        highest = max([*values, bound]) * 1.1
        points = " ".join(
            f"{left + each.at_s / end_s * width:.1f},{top + height - value / highest * height:.1f}"
            for each, value in zip(samples, values, strict=True)
        )
        limit = top + height - bound / highest * height
        return (
            f'<text x="{left}" y="{top - 8}">{title}; highest {max(values, default=0):.1f}, bound {bound:g}</text>'
            f'<path d="M{left},{top}v{height}h{width}" fill="none" stroke="#888"/>'
            f'<path d="M{left},{limit:.1f}h{width}" stroke="#c33" stroke-dasharray="6 4"/>'
            f'<text x="4" y="{limit + 4:.1f}">{bound:g}</text><text x="4" y="{top + height}">0</text>'
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {2 * height + 120}"'
        ' font-family="system-ui, sans-serif" font-size="13">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        + panel(30, "memory of the daemon, MB", [each.memory_mb for each in samples], memory_max_mb, "#27c")
        + panel(height + 80, "p99 of a healthy set, ms", [each.p99_ms for each in samples], p99_max_ms, "#2a6")
        + f'<text x="{left}" y="{2 * height + 105}">0 to {end_s / 60:.1f} minutes</text></svg>\n'
    )


def run(
    minutes: float, peers: int, states: int, memory_max_mb: float, p99_max_ms: float, options: Sequence[str] = ()
) -> Findings:
    """Start a daemon with these options, soak it, and return the findings."""
    findings, numbers = Findings(), Numbers(states)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "journal"
        try:
            with Daemon.start("--journal", str(directory), "--log-level", "error", *options) as daemon:
                asyncio.run(soak(daemon, minutes, peers, numbers, findings))
                daemon.check()
        except AssertionError as problem:  # it has ended, does not stop, or has written a traceback
            findings.fail(str(problem).strip())
        else:
            check_journal(directory, numbers, findings)
    highest_mb, p99_ms = (
        max((each.memory_mb for each in findings.samples), default=0),
        percentile(findings.latencies_ms, 0.99),
    )
    if not findings.latencies_ms:
        findings.fail("no set was answered")
    if highest_mb > memory_max_mb:
        findings.fail(f"the daemon had {highest_mb:.0f} MB, more than {memory_max_mb:.0f}")
    if p99_ms > p99_max_ms:
        findings.fail(f"p99 of a healthy set was {p99_ms:.1f} ms, more than {p99_max_ms:g}")
    return findings


def main() -> int:
    """Soak, draw, give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--peers", type=int, default=300)
    parser.add_argument("--states", type=int, default=20_000)
    parser.add_argument("--memory-mb", type=float, default=500, help="bound of the daemon's memory")
    parser.add_argument("--p99-ms", type=float, default=50, help="bound of the p99 of a healthy set")
    parser.add_argument("--chart", type=Path, default=Path("build/soak.svg"))
    parser.add_argument("--probe", metavar="HOST:PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        host, _, port = given.probe.rpartition(":")
        with contextlib.suppress(KeyboardInterrupt, TimeoutError, Closed):
            probe(host, int(port))
        return 0
    findings = run(given.minutes, given.peers, given.states, given.memory_mb, given.p99_ms)
    given.chart.parent.mkdir(parents=True, exist_ok=True)
    given.chart.write_text(draw(findings.samples, given.memory_mb, given.p99_ms), encoding="utf-8")
    for kind, count in sorted(findings.joined.items()):
        print(f"{count:7} {kind}")
    latencies = findings.latencies_ms
    print(f"{findings.events} events checked; {len(latencies)} sets, p50 {percentile(latencies, 0.5):.1f} ms, ", end="")
    print(f"p99 {percentile(latencies, 0.99):.1f} ms, longest {max(latencies, default=0):.1f} ms; ", end="")
    print(
        f"memory at most {max((each.memory_mb for each in findings.samples), default=0):.0f} MB; chart: {given.chart}"
    )
    for problem in findings.problems:
        print(f"PROBLEM: {problem}")
    print("soak: " + ("FAILED" if findings.problems else "passed"))
    return bool(findings.problems)


if __name__ == "__main__":
    sys.exit(main())
