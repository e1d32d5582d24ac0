"""A complete demo: a temporary folder, a daemon with a journal, the plant, Spark, and a peer that watches the bus.

    async with run_demo() as demo:
        await demo.wait()

When the block is left, for whatever reason, all processes have ended and the folder is removed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jetbus.demo.analysis import Analysis
from jetbus.demo.jetd import Jetd
from jetbus.demo.model import BusModel
from jetbus.demo.plant import PlantOwner
from jetbus.errors import JetError
from jetbus.peer import PeerAsync

ALARMS_WITHIN_S = 10.0
"""Longest wait for the process of the alarms."""


@dataclass(frozen=True)
class Summary:
    """Figures of a demo, printed at its end."""

    seconds: float
    recorded: int
    """Events in the journal."""
    states: int
    rollups: int
    alarms: int
    batches: int


@dataclass(frozen=True)
class Demo:
    """Running demo."""

    folder: Path
    jetd: Jetd
    owner: PlantOwner
    analysis: Analysis
    model: BusModel
    _peer: PeerAsync
    _simulation: asyncio.Task[None]

    async def wait(self) -> None:
        """Wait until the daemon or the plant fails, and raise the error."""
        over = asyncio.ensure_future(self.jetd.wait())
        try:
            await asyncio.wait((over, self._simulation), return_when=asyncio.FIRST_COMPLETED)
            for task in (over, self._simulation):
                if task.done():
                    task.result()
        finally:
            over.cancel()

    async def summarise(self) -> Summary:
        """Return the figures so far."""
        # Without pyarrow the daemon keeps no journal, and this state does not exist.
        journal = (await self._peer.get_all("$jet/journal/stats")).get("$jet/journal/stats", {})
        model = self.model
        return Summary(
            model.seconds, journal.get("events", 0), model.states, model.rollups, model.raised, model.count_batches()
        )


@asynccontextmanager
async def run_demo(*, spark: bool = True) -> AsyncIterator[Demo]:
    """Run a demo for the duration of an ``async with`` block."""
    # Undone in reverse order: the peers leave, Spark and the plant end, then the daemon, and the folder goes last.
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_make_folder())
        jetd = await Jetd.start(folder)
        stack.push_async_callback(jetd.stop)
        plant = await stack.enter_async_context(PeerAsync(jetd.url, name="plant"))
        owner = PlantOwner(plant)
        await owner.add_elements()
        simulation = asyncio.create_task(owner.run())
        stack.callback(simulation.cancel)
        analysis = Analysis()
        # Before the start, which may be cancelled when the process exists already.
        stack.push_async_callback(analysis.stop)
        await analysis.start(folder, jetd, wanted=spark)
        peer = await stack.enter_async_context(PeerAsync(jetd.url, name="demo"))
        model = BusModel(analysis)
        await model.start(peer)
        if jetd.has_alarms:
            # Commands that are suggested from now on ask for them.
            with suppress(TimeoutError, JetError):
                await peer.wait_for("alarms/position", timeout_s=ALARMS_WITHIN_S)
        yield Demo(folder, jetd, owner, analysis, model, peer, simulation)


@contextmanager
def _make_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="jet-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # a process that had to be killed, such as Java, wrote to it meanwhile
            shutil.rmtree(folder)
