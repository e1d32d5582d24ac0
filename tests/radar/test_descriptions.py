"""Schemas, times, quality and staleness of the rows in sight."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import ClientConnection, connect

import jetbus
from support.browser import NEEDS_CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Tab:
    """A tab that remembers the flags, schemas, times and qualities that it was sent."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.flags: dict[str, int] = {}
        self.schemas: dict[str, Any] = {}
        self.metas: dict[str, Any] = {}

    def watch(self, *paths: str) -> None:
        self._socket.send(json.dumps({"method": "watch", "params": {"paths": paths}}))

    def receive_until(self, test: Callable[[], bool]) -> None:
        while not test():
            message = json.loads(self._socket.recv(timeout=60))
            self.flags.update(message.get("tree", {}).get("add", []))
            self.schemas.update(message.get("schemas", {}))
            self.metas.update(message.get("meta", {}))


def test_the_descriptions_of_watched_paths(radar: str, owner: jetbus.Peer) -> None:
    """A tab gets schema and quality of what it watches, as they are and as they change, and of nothing else."""
    speed = owner.add_state("speed", 1, unit="rpm", maximum=3000)
    owner.add_state("level", 1, unit="m")
    with connect(radar.replace("http", "ws") + "ws") as socket:
        tab = Tab(socket)
        tab.watch("speed")
        tab.receive_until(lambda: "speed" in tab.schemas)
        assert (tab.schemas["speed"]["unit"], tab.schemas["speed"]["maximum"]) == ("rpm", 3000)
        speed.change(2, quality="bad")
        tab.receive_until(lambda: tab.flags.get("speed", 0) & 16 != 0)
        speed.change(3)
        tab.receive_until(lambda: tab.flags["speed"] & 16 == 0)
        speed.change(4, ts=datetime(2026, 3, 1, tzinfo=UTC), quality={"level": "bad", "reason": "cable broken"})
        told = {"ts": "2026-03-01T00:00:00.000000Z", "quality": "bad", "reason": "cable broken"}
        tab.receive_until(lambda: tab.metas.get("speed") == told)
        assert "level" not in tab.schemas
        tab.watch("level")
        tab.receive_until(lambda: "level" in tab.schemas)
        speed.remove()
        tab.receive_until(lambda: tab.schemas["speed"] is None and tab.metas["speed"] is None)


def test_a_stale_state(radar: str, owner: jetbus.Peer) -> None:
    """A state that its owner has not changed for too long is marked, until it changes."""
    speed = owner.add_state("speed", 1, stale_s=0.2)
    with connect(radar.replace("http", "ws") + "ws") as socket:
        tab = Tab(socket)
        tab.watch("speed")
        tab.receive_until(lambda: tab.flags.get("speed", 0) & 8 != 0)
        speed.change(2)
        tab.receive_until(lambda: tab.flags["speed"] & 8 == 0)


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_form_from_a_schema(page: Page, owner: jetbus.Peer) -> None:
    """The form has choices, ranges and units; a value that is out of range cannot be set."""
    from playwright.sync_api import expect

    owner.add_state("speed", 1200, on_set=lambda rpm: rpm, unit="rpm", minimum=0, maximum=3000, normal=(1000, 1500))
    owner.add_state("mode", "auto", on_set=lambda mode: mode, enum=["auto", "manual"])
    page.get_by_text("mode", exact=True).click()
    page.get_by_label("Set to").select_option("manual")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".facts .large")).to_have_text("manual")
    page.get_by_text("speed", exact=True).click()
    expect(page.locator(".facts .large")).to_have_text("1200rpm")
    field = page.get_by_role("textbox", name="Set to")
    field.fill("4000")
    expect(page.get_by_text("At most 3000 rpm.")).to_be_visible()
    expect(page.get_by_role("button", name="Set", exact=True)).to_be_disabled()
    field.fill("2000")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".detail .badge")).to_have_text("not normal")


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_time_and_quality_of_a_value(page: Page, owner: jetbus.Peer, radar: str) -> None:
    """Row and detail show the owner's time and quality, now and in the past, until a value comes without them."""
    from playwright.sync_api import expect

    measured = datetime(2026, 3, 1, 12, tzinfo=UTC)
    level = owner.add_state("tank/level", 1)
    level.change(2, ts=measured, quality={"level": "bad", "reason": "cable broken"})
    then = owner.call("$jet/journal/offsets")["now"]
    page.get_by_text("level", exact=True).click()
    row, facts = page.locator(".row.selected"), page.locator(".facts")
    for _ in ("live", "past"):
        expect(row.locator(".badge.problem")).to_have_text("bad")
        expect(row.locator(".age")).to_have_attribute("title", re.compile(r"^Measured 2026-0[23]-\d\d "))
        expect(row.locator(".age")).to_have_text(re.compile(r"^\d+ d$"))
        expect(facts).to_contain_text("bad: cable broken")
        expect(facts).to_contain_text(re.compile(r"Measured2026-0[23]-\d\d "))
        page.goto("about:blank")
        page.goto(f"{radar}#path=tank/level&at={then}")
        page.locator(".page.past").wait_for()
    page.get_by_role("button", name="Return to the present").click()
    level.change(3)
    expect(row.locator(".badge.problem")).to_have_count(0)
    expect(facts).not_to_contain_text("Measured")
    expect(facts).not_to_contain_text("cable broken")


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_value_that_is_older_than_the_page(page: Page, owner: jetbus.Peer, url: str) -> None:
    """The page claims to know when a value came only if it was there to see it."""
    from playwright.sync_api import expect

    with jetbus.Peer(url, name="early") as early:
        early.add_state("early", 1)
        early.get("early")
        page.reload()
        page.get_by_text("early", exact=True).click()
        expect(page.locator(".facts")).to_contain_text(re.compile("before this page|more than"))
        owner.add_state("late", 1)
        page.get_by_text("late", exact=True).click()
        expect(page.locator(".facts")).to_contain_text(re.compile(r"Changed(just now|[^>m]* ago)"))


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_stale_and_uncertain_badges(page: Page, owner: jetbus.Peer) -> None:
    """A row has badges for a value that is stale or uncertain, and loses them with a good value."""
    from playwright.sync_api import expect

    flow = owner.add_state("flow", 1, stale_s=0.2)
    badges = page.locator(".row .badge.warning")
    expect(badges).to_have_text("stale")
    flow.describe()  # without a limit nothing is stale any more
    flow.change(2, quality="uncertain")
    expect(badges).to_have_text("uncertain")
    flow.change(3)
    expect(badges).to_have_count(0)


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_quality_in_charts(page: Page, owner: jetbus.Peer) -> None:
    """Numbers and bands of no good quality are marked in red, and the legend says why."""
    from playwright.sync_api import expect

    valve = owner.add_state("valve", True)
    valve.change(True, quality="bad")
    page.get_by_text("valve", exact=True).click()
    legend = page.locator(".chart .cursor")
    expect(legend).to_contain_text("true, quality not good")
    expect(page.locator(".bands rect.bad")).to_have_count(1)
    valve.change(False)
    expect(legend).to_contain_text("false")
    expect(page.locator(".bands rect.bad")).to_have_count(1)
    expect(page.locator(".bands rect.band")).to_have_count(3)
    level = owner.add_state("level", 7)
    level.change(7, quality="uncertain")
    page.get_by_text("level", exact=True).click()
    expect(legend).to_contain_text("7, quality not good")
    expect(legend.locator(".swatch.bad")).to_have_count(1)
