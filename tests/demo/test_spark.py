"""`jet demo` with Spark: it joins when it is ready, publishes rollups and alarms, and goes with the demo."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

import jetbus
from support.demo import Lines, left_behind
from support.spark.machines import environment

WITHIN_S = 400.0
"""It takes ten seconds, but minutes on a busy machine."""


@pytest.mark.spark
@pytest.mark.timeout(4 * WITHIN_S)
def test_spark_joins(tmp_path: Path) -> None:
    """Spark starts, reads, publishes and raises an alarm, which others see on the bus; all of it ends."""
    with Lines(tmp_path, "--headless", **environment()) as running:
        running.until("Spark is starting")
        with jetbus.Peer(running.url) as peer:  # the bus is there before Spark is
            assert peer.get_all("plant/tank/level_percent")
            assert not peer.get_all("spark/**")
        running.until("Spark is reading", WITHIN_S)
        running.until("Spark is publishing", WITHIN_S)
        running.until("alarm (raised|cleared): bearing at plant/pump/2/vibration_mm_s", WITHIN_S)
        watching, asking = running.tips()[-2:]
        check_watching(running, watching)
        check_asking(running, asking)
        with jetbus.Peer(running.url) as peer:
            mean = peer.get_all("spark/rollups/1s/demo/plant/tank/level_percent")
            assert all(0 < rollup["time_mean"] < 100 for rollup in mean.values())
            assert mean
        assert running.end(signal.SIGTERM) == (0, "")
        printed = re.search(
            r"in (\d+) batches Spark published (\d+) rollups .* and raised (\d+) alarms", running.said[-1]
        )
        assert printed, running.said
        assert all(int(number) > 0 for number in printed.groups()), running.said[-1]
    assert left_behind(tmp_path) == ([], [])


def check_watching(running: Lines, line: str) -> None:
    """A suggested command shows the alarms on the bus."""
    assert "spark/alarms/" in line
    with running.typed(line) as watch:
        assert watch.stdout is not None
        event = json.loads(watch.stdout.readline())
        assert event["path"].startswith("spark/alarms/")
        assert event["value"]["what"] in ("raised", "cleared")
        watch.send_signal(signal.SIGINT)
        assert watch.communicate(timeout=WITHIN_S)[1] == ""


def check_asking(running: Lines, line: str) -> None:
    """A suggested command queries Spark's tables over the bus."""
    assert "spark/query/sql" in shlex.split(line)
    asked = subprocess.run(
        ["/bin/sh", "-c", line],
        env=running.environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "bearing" in {alarm for alarm, *_ in json.loads(asked.stdout)["rows"]}
