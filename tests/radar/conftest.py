"""Fixtures: a bus with a journal, a plant on it, and Radar as its own process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetbus
from support.browser import open_browser, open_page
from support.daemon import Daemon
from support.program import Program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

JET = Path(sys.executable).with_name("jet")


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
    with Program(str(JET), "radar", "--url", url, "--listen", "127.0.0.1:0", "--no-open", "-o", "jsonl") as program:
        line = program.line()
        assert line is not None, program.end()
        yield json.loads(line)["address"]
        program.interrupt()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, radar: str) -> Iterator[Page]:
    """The page of a bus; whatever it writes to the console fails the test."""
    with open_page(browser, radar) as page:
        yield page
