"""Losses of a journal: a loaded daemon ends without warning, and its acknowledged events are searched for.

    .venv/bin/python bench/durability.py             # a table, as in docs/reliability.md; a few minutes
    .venv/bin/python bench/durability.py --rounds 3

Two ends, by three settings of ``journal_fsync``: killed (``kill -9``), and a power loss, which leaves the bytes on disk
at that moment: the journal is on a file system in an image, and the image is copied. The second needs root.

For each it tells how many changes were acknowledged, how many of them were lost, and how old the oldest lost one was.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from jetbus.journal.recovery import recover
from support.crash import Nursery, Owner, lives_of, load_and_kill, read_plainly, values_of
from support.disk import make_image, mounted

OWNERS = 3
SHORTEST_S, LONGEST_S = 0.2, 2.5


class Losses:
    """Events that were lost in some rounds."""

    def __init__(self) -> None:
        self.rounds = self.acknowledged = self.lost = 0
        self.oldest_s = 0.0

    def add(self, directory: Path, owners: list[Owner], ended_s: float) -> None:
        """Search for the events that the owners know to be acknowledged."""
        recover(directory)
        lives = lives_of(read_plainly(directory)) if any(directory.glob("*.arrows")) else []
        self.rounds += 1
        for owner in owners:
            recorded = {value for life in lives for value in values_of(owner.path, life)}
            lost = [moment_s for value, moment_s in owner.acknowledged.items() if value not in recorded]
            self.acknowledged += len(owner.acknowledged)
            self.lost += len(lost)
            self.oldest_s = max([self.oldest_s, *(ended_s - moment_s for moment_s in lost)])


def measure(nursery: Nursery, end: str, fsync: str, rounds: int, chance: random.Random) -> Losses:
    """Let a daemon end so many times, each time with a new journal."""
    found = Losses()
    for _ in range(rounds):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            directory, image, copy = folder / "disk" / "journal", folder / "disk.img", folder / "copy.img"
            owners = [Owner(f"load/{number}") for number in range(OWNERS)]
            options = ["--journal", str(directory), "--journal-fsync", fsync]
            after_s = chance.uniform(SHORTEST_S, LONGEST_S)
            if end == "killed":
                ended_s = load_and_kill(nursery, owners, options, after_s)
            else:
                make_image(image)
                with mounted(image, directory.parent):
                    ended_s = load_and_kill(nursery, owners, options, after_s, lambda: _copy(image, copy))  # noqa: B023
                stack.enter_context(mounted(copy, directory.parent))
            if directory.exists():
                found.add(directory, owners, ended_s)
    return found


def _copy(image: Path, copy: Path) -> None:
    shutil.copyfile(image, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is measured")
    asked = parser.parse_args()
    chance = random.Random(os.urandom(8))
    nursery = Nursery()
    print("| end | `journal_fsync` | times | acknowledged | lost | oldest lost |")
    print("|---|---|---|---|---|---|")
    for end in ("killed", "power loss"):
        for fsync in ("always", "interval", "never"):
            found = measure(nursery, end, fsync, asked.rounds, chance)
            oldest = f"{found.oldest_s * 1000:,.0f} ms" if found.lost else "-"
            print(
                f"| {end} | `{fsync}` | {found.rounds} | {found.acknowledged:,} | {found.lost:,} | {oldest} |",
                flush=True,
            )
    nursery.close()


if __name__ == "__main__":
    main()
