"""Fixtures: a bus with a journal, a plant on it, and Radar as its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetbus
from support.browser import open_browser, open_page
from support.daemon import Daemon
from support.radar import serve_radar

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start("--journal", str(tmp_path / "journal")) as daemon:
        yield daemon


@pytest.fixture
def url(bus: Daemon) -> str:
    return f"jet://{bus.listens['tcp']}"


@pytest.fixture
def owner(url: str) -> Iterator[jetbus.Peer]:
    with jetbus.Peer(url, name="plant") as peer:
        yield peer


@pytest.fixture
def radar(url: str) -> Iterator[str]:
    """The address of a Radar of this bus."""
    with serve_radar(url) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, radar: str) -> Iterator[Page]:
    """The page of a bus; whatever it writes to the console fails the test."""
    with open_page(browser, radar) as page:
        yield page
