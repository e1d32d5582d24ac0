"""What the buffer of an owner costs: processor time of owner and daemon for a change, and the rate of draining.

    python bench/buffer.py [--changes 50000] [--rounds 5]

Each round starts a daemon with a journal and has one owner change 1,000 states in turn: without a buffer, with one in
memory, with one in a folder. The variants alternate, so that the load of the machine falls on all of them; only ratios
of processor time are to be trusted. Then the connection is cut, the owner goes on, and the buffer drains when it is
back.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jetbus

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.daemon import Daemon

STATES = 1_000
BURST = 1_000
"""Changes between two answers of the daemon, so that the owner is never far ahead."""
VARIANTS = ("none", "memory", "folder")


class Cost(NamedTuple):
    """Microseconds of processor time for a change, of owner and daemon."""

    owner_us: float
    daemon_us: float
    drained_s: float
    """Late values that were recorded in a second; 0 without a buffer."""

    @property
    def both_us(self) -> float:
        return self.owner_us + self.daemon_us


def measure(variant: str, changes: int) -> Cost:
    """Run one owner against a daemon of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"none": None, "memory": "memory", "folder": f"{folder}/buffer"}[variant]
        with (
            Daemon.start("--journal", f"{folder}/log") as daemon,
            jetbus.Peer(f"jet://{daemon.listens['tcp']}", buffer=place, buffer_share=1.0 if place else None) as owner,
        ):
            states = [owner.add_state(f"bench/{number}", 0) for number in range(STATES)]

            def read_cpu_s() -> tuple[float, float]:
                fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
                return time.process_time(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

            def change(count: int, value: int, *, wait: bool = True) -> None:
                for start in range(0, count, BURST):
                    for number in range(start, start + BURST):
                        states[number % STATES].change(value + number)
                    if wait:
                        owner.get("bench/0")

            change(10 * BURST, 0)
            before = read_cpu_s()
            change(changes, 1_000_000)
            own_s, daemon_s = (now - then for now, then in zip(read_cpu_s(), before, strict=True))
            return Cost(own_s / changes * 1e6, daemon_s / changes * 1e6, drain(owner, change, changes))


def drain(owner: jetbus.Peer, change: Callable[..., None], changes: int) -> float:
    """Return the late values that are recorded in a second after a connection was cut."""
    if owner.buffer is None:
        return 0.0
    while len(owner.buffer):
        time.sleep(0.01)
    owner.abort()
    change(changes, 2_000_000, wait=False)
    kept, start_s = len(owner.buffer), time.monotonic()
    while len(owner.buffer):
        time.sleep(0.01)
    return kept / (time.monotonic() - start_s)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--changes", type=int, default=50_000)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    found: dict[str, list[Cost]] = {variant: [] for variant in VARIANTS}
    for _ in range(given.rounds):
        for variant in VARIANTS:
            found[variant].append(measure(variant, given.changes))
    base = statistics.median(cost.both_us for cost in found["none"])
    print("| buffer | owner, us a change | daemon, us a change | both to none | drained a second |")
    print("|---|---|---|---|---|")
    for variant, costs in found.items():
        owner_us, daemon_us, drained_s = (statistics.median(column) for column in zip(*costs, strict=True))
        ratio = statistics.median(cost.both_us for cost in costs) / base
        rate = f"{drained_s:,.0f}" if drained_s else ""
        print(f"| {variant} | {owner_us:.1f} | {daemon_us:.1f} | {ratio:.2f} | {rate} |")


if __name__ == "__main__":
    main()
