"""The recorder on the daemons of node-jet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetbus import PeerAsync
from jetbus.recorder import Recorder
from support.foreign import KINDS, NAMES, ForeignDaemon
from support.peers import run, until
from support.recorded_events import check_chain, recorded_events, rows, until_tree

pytestmark = pytest.mark.interop


@pytest.fixture(params=KINDS, ids=NAMES)
def foreign(request: pytest.FixtureRequest) -> Iterator[ForeignDaemon]:
    with ForeignDaemon(*request.param) as daemon:
        yield daemon


def test_what_is_seen_is_recorded(foreign: ForeignDaemon, tmp_path: Path) -> None:
    """On every daemon: what is there, then every add, change and remove, of states and methods, chosen by a rule."""

    async def case() -> None:
        async with PeerAsync(foreign.url) as owner:
            speed = await owner.add_state("pump/speed", 1)
            await owner.add_state("other", 1)
            async with Recorder(foreign.url, tmp_path, rule="pump/**") as recorder:
                for value in (2, None, {"rpm": [1.5]}):
                    speed.change(value)
                stop = await owner.add_method("pump/stop", lambda: None)
                await until_tree(recorder, {"pump/speed": {"rpm": [1.5]}})
                await stop.remove()
                await speed.remove()
                await until_tree(recorder, {})

    run(case())
    found = recorded_events(tmp_path)
    assert found[:5] == [
        ("start",),
        ("add", "pump/speed", 1),
        *[("change", "pump/speed", value) for value in (2, None, {"rpm": [1.5]})],
    ]
    of_methods = [] if foreign.version == 3 else [("add", "pump/stop"), ("remove", "pump/stop")]  # 3 tells of none
    assert [(event, path) for event, path, *_ in found[5:-1]] == [*of_methods, ("remove", "pump/speed")]
    assert {row["kind"] for row in rows(tmp_path) if row["path"] == "pump/stop"} <= {"method"}


def test_a_restart_is_a_gap(foreign: ForeignDaemon, tmp_path: Path) -> None:
    """After a restart of the daemon the recorder reconnects, records a gap and the present state."""

    async def case() -> None:
        async with PeerAsync(foreign.url) as owner, Recorder(foreign.url, tmp_path) as recorder:
            kept, gone = await owner.add_state("kept", 1), await owner.add_state("gone", 1)
            await until_tree(recorder, {"kept": 1, "gone": 1})
            await asyncio.to_thread(foreign.stop)
            await until(lambda: not (owner.connected or recorder.connected))
            kept.change(2)
            owner.session.drop(gone._owned)
            await asyncio.to_thread(foreign.start)
            await until(lambda: owner.connected and recorder.connected)
            await until_tree(recorder, {"kept": 2})

    run(case())
    assert [row["event"] for row in rows(tmp_path)].count("gap") == 1
    check_chain(tmp_path)
