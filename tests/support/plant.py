"""Elements on the bus that the commands are tried on."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jetbus
from jetbus.journal import Writer
from jetbus.journal.instants import US_PER_S, wall_clock_us
from support.daemon import Daemon

VALUES = {
    "plant/pump/mode": "manual",
    "plant/pump/running": False,
    "plant/pump/speed": 1000,
    "plant/tank/label": {"unit": "m³", "range": [0, 10]},
}
"""The states that stay as they are, unless they are set."""
USERS = {
    "ann": {
        "password": "ann's own",
        "admin": True,
        "auth": {"fetchGroups": ["staff", "bosses"], "setGroups": ["staff"], "callGroups": ["staff"]},
    },
    "bob": {"password": "secret", "auth": {"fetchGroups": ["staff"], "setGroups": ["guests"], "callGroups": []}},
}


def record(folder: Path, seconds: int = 20) -> int:
    """A journal of the plant: its level of each of the last seconds; gives the instant of its end."""
    end_us = wall_clock_us()
    begin_us = end_us - seconds * US_PER_S
    folder.mkdir(parents=True)
    with Writer(folder, now_us=lambda: begin_us) as writer:
        writer.append("start", peer="jetd")
        writer.append("add", "state", "plant/pump/mode", b'"manual"', "plant#1")
        writer.append("add", "state", "plant/tank/level", b"0", "plant#1")
        for number in range(1, seconds + 1):
            writer.now_us = begin_us + number * US_PER_S
            writer.change("plant/tank/level", b"%d" % number, "plant#1")
        writer.commit()
    return end_us


def _speed(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise jetbus.Refused("a speed is a number", code=1001)
    return jetbus.Adapted(3000, "the limit is 3000 rpm") if value > 3000 else None


@contextmanager
def plant(url: str, *, moving: bool = True) -> Iterator[jetbus.Peer]:
    """A pump and a tank whose level moves, unless told otherwise."""
    with jetbus.Peer(url, name="plant") as owner:
        owner.add_state("plant/pump/mode", "manual", on_set=lambda _value: None)
        owner.add_state("plant/pump/running", False)
        owner.add_state("plant/pump/speed", 1000, on_set=_speed)
        owner.add_state("plant/tank/label", VALUES["plant/tank/label"])
        level = owner.add_state("plant/tank/level", 0)
        owner.add_method("plant/pump/add", lambda a, b: a + b)
        owner.add_method("plant/pump/run", lambda seconds, rpm=1000: f"{seconds} s at {rpm} rpm")
        stopped = threading.Event()

        def move() -> None:
            for number in itertools.count():
                if stopped.wait(0.04):
                    return
                level.change(number % 10)

        mover = threading.Thread(target=move)
        if moving:
            mover.start()
        try:
            yield owner
        finally:
            stopped.set()
            if moving:
                mover.join()


def url_of(daemon: Daemon) -> str:
    return f"jet://{daemon.listens['tcp']}"


def with_users(folder: Path) -> Path:
    """A folder with a users file, and with the passwords of ann and bob."""
    (folder / "users.json").write_text(json.dumps({"users": USERS}))
    (folder / "ann.txt").write_text("ann's own\n")
    (folder / "pass.txt").write_text("secret\n")
    return folder
