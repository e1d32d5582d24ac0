"""A demo as a whole: a folder of its own, a daemon with a journal, the plant, Spark, and a peer that sees it all.

    async with running_demo() as demo:
        await demo.ended()

When the block is left, by whatever reason, every process has ended and the folder is gone.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jetbus.demo.analysis import Analysis
from jetbus.demo.jetd import Jetd
from jetbus.demo.plant import PlantOwner
from jetbus.demo.seeing import Seen
from jetbus.peer import PeerAsync


@dataclass(frozen=True)
class Summary:
    """What a demo has done, told at its end."""

    seconds: float
    recorded: int
    """Events in the journal."""
    states: int
    rollups: int
    alarms: int
    batches: int


@dataclass(frozen=True)
class Demo:
    """A demo that runs."""

    folder: Path
    jetd: Jetd
    owner: PlantOwner
    analysis: Analysis
    seen: Seen
    _peer: PeerAsync
    _living: asyncio.Task[None]

    async def ended(self) -> None:
        """Wait until the daemon ends, which is an error; only leaving the demo ends it otherwise."""
        over = asyncio.ensure_future(self.jetd.ended())
        try:
            await asyncio.wait((over, self._living), return_when=asyncio.FIRST_COMPLETED)
            for task in (over, self._living):
                if task.done():
                    task.result()
        finally:
            over.cancel()

    async def summary(self) -> Summary:
        """What was done so far."""
        journal = (await self._peer.get("$jet/journal/stats")).get("$jet/journal/stats", {})
        seen = self.seen
        return Summary(seen.seconds, journal.get("events", 0), seen.states, seen.rollups, seen.raised, seen.batches())


@asynccontextmanager
async def running_demo(*, spark: bool = True) -> AsyncIterator[Demo]:
    """A demo for the time of an ``async with`` block."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_own_folder())
        jetd = await Jetd.start(folder)
        stack.push_async_callback(jetd.stop)
        plant = await stack.enter_async_context(PeerAsync(jetd.url, name="plant"))
        owner = PlantOwner(plant)
        await owner.hang_in()
        living = asyncio.create_task(owner.live())
        stack.callback(living.cancel)
        analysis = Analysis()
        stack.push_async_callback(analysis.stop)
        await analysis.start(folder, jetd, wanted=spark)
        peer = await stack.enter_async_context(PeerAsync(jetd.url, name="demo"))
        seen = Seen(analysis)
        await seen.begin(peer)
        yield Demo(folder, jetd, owner, analysis, seen, peer, living)


@contextmanager
def _own_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="jet-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # somebody wrote into it meanwhile, such as a Java that had to be killed
            shutil.rmtree(folder)
