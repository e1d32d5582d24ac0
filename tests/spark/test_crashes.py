"""The pipeline as a process of its own: killed at any moment, and its daemon with it; stopped as it should be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.spark import reference
from support.spark.kills import EVENTS, read_log
from support.spark.on_disk import assert_on_disk, read_delta
from support.spark.reference import Event

if TYPE_CHECKING:
    from conftest import Killed

WITHIN_S = 2400


@pytest.mark.timeout(WITHIN_S)
def test_a_killed_pipeline_goes_on_without_loss_or_repeat(killed: Killed) -> None:
    """Killed six times in its batches, its daemon killed meanwhile, the pipeline has each event once in every table.

    After all of that SIGTERM ends it after its batch, with exit code 0. Tables are read by deltalake.
    """
    received, _ = killed.process.communicate()
    assert killed.process.returncode == 0, (killed.folder / "complaints").read_text(errors="replace")[-4000:]
    tables = killed.folder / "tables"
    newest = max(read_delta(tables, "batches").to_pylist(), key=lambda row: int(row["batch"]))
    last, now_us = (json.loads(newest[name])["plant"] for name in ("seqs", "clock"))
    log = [event for event in read_log(killed.folder / "journal") if event.seq <= last]
    worked = sum(event.path == "plant/count" and event.event == "change" for event in log)
    assert worked == int(received) * EVENTS
    # Windows end by the clock, too, which may be later than the last event.
    until_now = [*log, Event("plant", last, now_us, "time")]
    rows = {
        "events": reference.events(log),
        "history": reference.history(log),
        "rollups": reference.rollups(until_now),
        "availability": reference.availability(log),
    }
    assert_on_disk(tables, rows)
