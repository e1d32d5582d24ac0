"""A real Chromium for the tests of Radar's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WITHIN_MS = 60_000
"""Patience of every wait: tests must pass on a busy machine, too."""

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser without windows."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """Open a page of its own context; whatever it writes to the console is an error."""
    context = browser.new_context(**{"viewport": {"width": 1300, "height": 800}, **options})
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    context.close()
    assert not complaints, complaints
