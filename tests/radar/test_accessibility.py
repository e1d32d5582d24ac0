"""Every view of the page, in light and dark, wide and narrow: nothing that axe-core finds, nothing in the console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jetbus
from support.browser import NEEDS_CHROMIUM, open_page
from support.daemon import Daemon
from support.radar import serve_radar

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.browser,
    NEEDS_CHROMIUM,
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: run npm ci in web/"),
]

LOOKS: dict[str, dict[str, Any]] = {
    "light and wide": {"color_scheme": "light", "viewport": {"width": 1300, "height": 800}},
    "dark and wide": {"color_scheme": "dark", "viewport": {"width": 1300, "height": 800}},
    "light and narrow": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}},
    "dark and narrow": {"color_scheme": "dark", "viewport": {"width": 400, "height": 800}},
}
BOARD = {
    "radar": "board",
    "version": 1,
    "title": "Pumps",
    "tiles": [
        {"path": "pump/speed", "kind": "value"},
        {"path": "pump/speed", "kind": "gauge"},
        {"path": "pump/speed", "kind": "chart", "width": 2},
        {"path": "pump/running", "kind": "switch"},
        {"path": "pump/reset", "kind": "button"},
        {"path": "pump", "kind": "table"},
        {"path": "gone", "kind": "value"},
    ],
}
VIEWS = {
    "tree": ("", ".canvas .row"),
    "state": ("path=pump/speed", ".detail .form"),
    "object": ("path=settings", ".detail .members"),
    "read-only": ("path=pump/name", ".detail .hint"),
    "method": ("path=pump/reset", ".detail .form"),
    "gone": ("path=nowhere", ".detail .empty"),
    "search": ("rule=pump", ".search .hint"),
    "wrong rule": ("rule=pump/** value>", ".search .problem"),
    "nothing found": ("rule=zzz", ".rows .empty"),
    "board": ("view=boards&board=pumps", ".tile"),
    "charts": ("view=charts", "main h2"),
    "compare": ("view=compare", "main h2"),
    "pipeline": ("view=pipeline", "main h2"),
    "peers": ("view=peers", "main table"),
    "journal": ("view=journal", "main dl"),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Radar of a small plant."""
    folder = tmp_path_factory.mktemp("radar")
    (folder / "boards").mkdir()
    (folder / "boards" / "pumps.json").write_text(json.dumps(BOARD))
    with Daemon.start("--journal", str(folder / "journal")) as daemon:
        url = f"jet://{daemon.listens['tcp']}"
        boards = ("--boards", str(folder / "boards"))
        with jetbus.Peer(url, name="plant") as plant, serve_radar(url, *boards) as address:
            speed = plant.add_state("pump/speed", 1200, on_set=lambda rpm: rpm)
            speed.change(1300)
            plant.add_state("pump/running", True, on_set=lambda on: on)
            plant.add_state("pump/name", "P-101")
            plant.add_method("pump/reset", lambda: None)
            plant.add_state("settings", {"low": 1, "on": True, "list": [1]}, on_set=lambda value: value)
            plant.add_state("spark/alarms/fast/bus/pump/speed", {"what": "raised"})
            yield address


def find_violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the page as it is now."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_every_view_is_accessible(browser: Browser, address: str, look: dict[str, Any]) -> None:
    """No view has anything that axe-core objects to, and none is wider than the screen."""
    findings: dict[str, Any] = {}
    with open_page(browser, address, **look) as page:
        for name, (link, sign) in VIEWS.items():
            page.goto("about:blank")
            page.goto(f"{address}#{link}")
            page.locator(sign).first.wait_for()
            findings[name] = find_violations(page)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                findings[name].append("wider than the screen")
        page.keyboard.press("Control+k")
        page.get_by_role("option").first.wait_for()
        findings["palette"] = find_violations(page)
        page.keyboard.press("Escape")
        page.goto("about:blank")
        page.goto(f"{address}#view=boards&board=pumps")
        page.get_by_role("button", name="Keep in this browser").click()
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Path to add").wait_for()
        findings["board being edited"] = find_violations(page)
    assert {name: found for name, found in findings.items() if found} == {}
