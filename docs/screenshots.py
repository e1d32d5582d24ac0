"""Takes the pictures of Radar in the docs: a small plant, its daemon and Radar, seen by Chromium.

    .venv/bin/python docs/screenshots.py

Look at the pictures before you commit them. The page must have been built: `make radar`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

import jetbus
from jetbus.testing import running_daemon

DOCS = Path(__file__).parent
JET = Path(sys.executable).with_name("jet")
CHROMIUM = "/usr/bin/chromium"
RECORD_S = 45
STEP_S = 0.1

BOARD = {
    "radar": "board",
    "version": 1,
    "title": "Pumping station",
    "tiles": [
        {"path": "plant/pump1/speed", "kind": "gauge"},
        {"path": "plant/pump1/temperature", "kind": "value"},
        {"path": "plant/pump1/running", "kind": "switch"},
        {"path": "plant/pump1/reset", "kind": "button"},
        {"path": "plant/pump1/speed", "kind": "chart", "width": 2},
        {"path": "plant/pump2", "kind": "table"},
    ],
}
PICTURES: dict[str, tuple[Literal["light", "dark"], str]] = {
    "radar.png": ("light", "path=plant/pump1/speed"),
    "radar-board.png": ("dark", "view=boards&board=station"),
}
WITHOUT_COMMIT = """
    for (const node of document.querySelectorAll("header *"))
        for (const text of node.childNodes)
            if (text.nodeType === Node.TEXT_NODE) text.data = text.data.replace(/\\.dev\\S+/, "");
"""
"""Leaves the version in the header without its commit, which says nothing to a reader."""
PAST_PICTURE = "radar-past.png"
PAST_S = 20
"""Age of the instant that the picture of the past shows."""


def run_plant(url: str, stop: threading.Event) -> None:
    """Own a few pumps and a tank, and change them until told to stop."""
    with jetbus.Peer(url, name="plant") as plant:
        speeds, temperatures = [], []
        for number in (1, 2, 3):
            path = f"plant/pump{number}"
            speeds.append(
                plant.add_state(
                    f"{path}/speed", 1400, on_set=lambda rpm: rpm, unit="rpm", minimum=0, maximum=3000, title="Speed"
                )
            )
            temperatures.append(plant.add_state(f"{path}/temperature", 41.5, unit="°C", precision=1))
            plant.add_state(f"{path}/running", True, on_set=lambda on: on)
            plant.add_state(f"{path}/mode", "auto", on_set=lambda mode: mode, enum=["auto", "manual", "off"])
            plant.add_method(f"{path}/reset", lambda: True)
        level = plant.add_state("plant/tank/level", 62.0, unit="%", normal=(20, 60), precision=1)
        plant.add_state("plant/settings", {"name": "Line 4", "limits": {"low": 10, "high": 90}}, on_set=lambda v: v)
        step = 0
        while not stop.wait(STEP_S):
            step += 1
            for number, (speed, temperature) in enumerate(zip(speeds, temperatures, strict=True)):
                speed.change(round(1400 + 120 * math.sin(step / 40 + number) + 15 * math.sin(step / 3), 1))
                temperature.change(round(41 + 3 * math.sin(step / 90 + number), 2))
            level.change(round(62 + 5 * math.sin(step / 120), 2))


@contextmanager
def run_radar(url: str, boards: Path) -> Iterator[str]:
    """Serve Radar and yield its address."""
    options = ["--listen", "127.0.0.1:0", "--boards", str(boards), "--no-open", "-o", "jsonl"]
    command = [str(JET), "radar", "--url", url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        yield json.loads(process.stdout.readline() if process.stdout else "{}")["address"]
        process.terminate()


def take_pictures(address: str) -> None:
    """Open every view and write its picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        pages = {}
        for name, (scheme, link) in PICTURES.items():
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": 720})
            page.goto(f"{address}#{link}")
            page.get_by_role("button", name="1 min", exact=True).first.click()
            pages[name] = page
        page.wait_for_timeout(RECORD_S * 1000)
        for name, page in pages.items():
            page.bring_to_front()
            page.wait_for_timeout(1500)
            page.evaluate(WITHOUT_COMMIT)
            page.screenshot(path=DOCS / name)
        page = browser.new_page(color_scheme="light", viewport={"width": 1200, "height": 720})
        page.goto(f"{address}#path=plant/pump1/speed&at={int((time.time() - PAST_S) * 1_000_000)}")
        page.get_by_role("button", name="1 min", exact=True).first.click()
        page.get_by_role("status").filter(has_text="The past").wait_for()
        page.wait_for_timeout(1500)
        page.evaluate(WITHOUT_COMMIT)
        page.screenshot(path=DOCS / PAST_PICTURE)
        browser.close()


def main() -> None:
    """Start everything, take the pictures, end everything."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, running_daemon(journal=Path(folder) / "journal") as daemon:
        boards = Path(folder) / "boards"
        boards.mkdir()
        (boards / "station.json").write_text(json.dumps(BOARD))
        plant = threading.Thread(target=run_plant, args=(daemon.url, stop))
        plant.start()
        try:
            with run_radar(daemon.url, boards) as address:
                take_pictures(address)
        finally:
            stop.set()
            plant.join()


if __name__ == "__main__":
    main()
