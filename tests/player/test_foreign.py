"""Recordings are played onto the daemons of node-jet, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetbus.player import Player
from support.bus_watcher import watching
from support.foreign import KINDS, NAMES, ForeignDaemon
from support.peers import raised, run
from support.recordings import PLANT, at_us, seen

pytestmark = pytest.mark.interop


@pytest.fixture(params=KINDS, ids=NAMES)
def foreign(request: pytest.FixtureRequest) -> Iterator[ForeignDaemon]:
    with ForeignDaemon(*request.param) as daemon:
        yield daemon


def test_what_was_recorded_happens_again(foreign: ForeignDaemon, plant: Path) -> None:
    """All that the daemon tells of happens again on it, back and forth; a set is refused."""

    async def case() -> None:
        async with watching(foreign.url) as watcher, Player(plant, foreign.url) as player:
            await player.wait()
            expected = [event for event in seen(PLANT) if foreign.version != 3 or event[1] != "pump/run"]
            assert await watcher.after(len(expected)) == expected
            player.pause()
            await player.seek(at_us(60))
            await watcher.until_states({"pump/speed": 300, "pump/on": True})
            await raised(watcher.peer.set("pump/on", False))
            assert await watcher.states() == {"pump/speed": 300, "pump/on": True}

    run(case())
