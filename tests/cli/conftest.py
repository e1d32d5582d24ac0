"""Fixtures: a real daemon with a plant on its bus, and the command `jet` for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus
from cli.plant import plant
from cli.running import Jet
from support.daemon import Daemon

USERS = {
    "ann": {
        "password": "ann's own",
        "admin": True,
        "auth": {"fetchGroups": ["staff", "bosses"], "setGroups": ["staff"], "callGroups": ["staff"]},
    },
    "bob": {"password": "secret", "auth": {"fetchGroups": ["staff"], "setGroups": ["guests"], "callGroups": []}},
}


@pytest.fixture(scope="session")
def plant_daemon() -> Iterator[Daemon]:
    """A daemon with the plant on its bus; shared, so that a test must leave the plant as it was."""
    with Daemon.start() as daemon, plant(url_of(daemon)):
        yield daemon
        daemon.check()


def url_of(daemon: Daemon) -> str:
    return f"jet://{daemon.listens['tcp']}"


@pytest.fixture
def jet(plant_daemon: Daemon, tmp_path: Path) -> Jet:
    """The command, for the bus with the plant."""
    return Jet(url_of(plant_daemon), tmp_path)


@pytest.fixture
def owner(plant_daemon: Daemon) -> Iterator[jetbus.Peer]:
    """A peer of the test's own on that bus."""
    with jetbus.Peer(url_of(plant_daemon)) as peer:
        yield peer


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Jet, jetbus.Peer]]:
    """The command and an owner at a daemon with the users ann, an admin, and bob."""
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": USERS}))
    (tmp_path / "ann.txt").write_text("ann's own\n")
    (tmp_path / "pass.txt").write_text("secret\n")
    with Daemon.start("--users", str(users)) as daemon, jetbus.Peer(url_of(daemon)) as owner:
        yield Jet(url_of(daemon), tmp_path), owner
