"""``jetd --alarms``: alarms that are raised by a process beside the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import jetbus
from support.daemon import COMMAND, Daemon

WITHIN_S = 60.0
ALARMS = """
[alarm.hot]
rule = "oven/*"
when = "num > 80"
notify = ["horn"]

[receiver.horn]
set = "plant/horn"
value = "true"
"""


def _find_child(daemon: Daemon) -> int:
    tasks = Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
    (child,) = [int(number) for task in tasks for number in task.read_text().split()]
    return child


def test_alarms_beside_the_daemon(tmp_path: Path) -> None:
    """Alarms are raised, a receiver on the bus is set, and a process that takes over knows what was acknowledged."""
    file = tmp_path / "alarms.toml"
    file.write_text(ALARMS)
    with Daemon.start("--journal", str(tmp_path / "log"), "--alarms", str(file)) as daemon:
        with jetbus.Peer(f"jet://{daemon.listens['tcp']}") as peer:
            peer.wait_for("alarms/position", timeout_s=WITHIN_S)
            peer.add_state("plant/horn", False, on_set=lambda _value: None)
            oven = peer.add_state("oven/left", 20)
            peer.add_state("oven/right", 99)
            oven.change(90)
            peer.wait_for("plant/horn value=true", timeout_s=WITHIN_S)
            found = peer.call("alarms/ack", path="oven/left", who="ann", note="seen")
            assert found == [{"alarm": "hot", "path": "oven/left"}]
            before = _states(peer)
            with peer.fetch("alarms/position", policy="every") as fetch:
                os.kill(_find_child(daemon), signal.SIGKILL)
                _await_kinds(fetch, "remove", "add")
            assert _states(peer) == before == {"oven/left": "acknowledged", "oven/right": "unacknowledged"}
            oven.change(7)
            with peer.fetch("alarms/active/hot/oven/left", policy="every") as fetch:
                _await_kinds(fetch, "remove")
        child = _find_child(daemon)
        assert "the process of the alarms has ended with exit code -9" in daemon.stderr()
    assert not Path(f"/proc/{child}").exists()


def _await_kinds(fetch: Any, *kinds: str) -> None:
    """Wait for events of these kinds, one after the other."""
    wanted = list(kinds)
    for event in fetch:
        if event.kind == wanted[0]:
            del wanted[0]
        if not wanted:
            return


def _states(peer: Any) -> dict[str, str]:
    """Return the states of all alarms, by path."""
    active = peer.get_all("alarms/active/**")
    return {path.removeprefix("alarms/active/hot/"): told["state"] for path, told in active.items()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alarms", "none.toml"], "give --journal DIR"),
        (["--journal", "log", "--alarms", "none.toml"], "there is no file none.toml"),
    ],
    ids=["no journal", "no file"],
)
def test_alarms_that_cannot_run(tmp_path: Path, words: list[str], message: str) -> None:
    """Without a journal, or without its file, the daemon does not start, and says why."""
    command = [*COMMAND, "--tcp", "127.0.0.1:0", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=WITHIN_S, check=False)
    assert done.returncode == 1
    assert message in done.stderr
