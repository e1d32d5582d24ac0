"""Fixtures: a real daemon with a plant on its bus, and the command `jet` for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus
from jetbus.journal import Writer
from jetbus.journal.instants import US_PER_S, wall_clock_us
from support.daemon import Daemon
from support.jet import FORKS, Jet
from support.plant import plant, url_of, with_users

SELDOM = ("--journal-flush-ms", "2000")
"""Whoever looks back sees everything anyway, and the daemons have less to do."""


@pytest.fixture(scope="session", autouse=True)
def _forks_end() -> Iterator[None]:
    yield
    FORKS.close()


@pytest.fixture(scope="session")
def plant_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the journal of the daemon with the plant, which began an hour ago."""
    folder = tmp_path_factory.mktemp("plant") / "journal"
    folder.mkdir()
    hour_ago_us = wall_clock_us() - 3600 * US_PER_S
    with Writer(folder, now_us=lambda: hour_ago_us) as writer:
        writer.append("start", peer="jetd")
    return folder


@pytest.fixture(scope="session")
def plant_daemon(plant_journal: Path) -> Iterator[Daemon]:
    """A daemon with the plant on its bus and a journal; shared, so that a test must leave the plant as it was."""
    with Daemon.start("--journal", str(plant_journal), *SELDOM) as daemon, plant(url_of(daemon)):
        yield daemon
        daemon.check()


@pytest.fixture
def jet(plant_daemon: Daemon, tmp_path: Path) -> Jet:
    """The command, for the bus with the plant."""
    return Jet(url_of(plant_daemon), tmp_path)


@pytest.fixture
def owner(plant_daemon: Daemon) -> Iterator[jetbus.Peer]:
    """A peer of the test's own on that bus."""
    with jetbus.Peer(url_of(plant_daemon)) as peer:
        yield peer


@pytest.fixture(scope="session")
def guarded_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the users ann, an admin, and bob, the plant, and a journal for bosses; shared as well."""
    folder = with_users(tmp_path_factory.mktemp("guarded"))
    journal = ("--journal", str(folder / "journal"), "--journal-groups", "bosses", *SELDOM)
    with Daemon.start("--users", str(folder / "users.json"), *journal) as daemon, plant(url_of(daemon), moving=False):
        yield daemon
        daemon.check()


@pytest.fixture
def guarded(guarded_daemon: Daemon, tmp_path: Path) -> Iterator[tuple[Jet, jetbus.Peer]]:
    """The command and an owner at the daemon with users."""
    with jetbus.Peer(url_of(guarded_daemon)) as owner:
        yield Jet(url_of(guarded_daemon), with_users(tmp_path)), owner
