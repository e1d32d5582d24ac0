"""Boards in a real Chromium: made by dragging or by keyboard, kept, shared as a link and as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetbus
from support.browser import NEEDS_CHROMIUM, open_page
from support.radar import serve_radar

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, NEEDS_CHROMIUM]


@pytest.fixture
def states(owner: jetbus.Peer) -> dict[str, jetbus.State]:
    return {
        "speed": owner.add_state("pump/speed", 1234, on_set=lambda rpm: rpm),
        "running": owner.add_state("pump/running", False, on_set=lambda on: on),
    }


def add_tile(page: Page, path: str) -> None:
    page.get_by_label("Path to add").fill(path)
    page.get_by_role("button", name="Add", exact=True).click()


def test_a_board_by_dragging(page: Page, states: dict[str, jetbus.State]) -> None:
    """States are dragged from the tree onto the board, and follow the bus there."""
    from playwright.sync_api import expect

    page.get_by_role("button", name="Boards").click()
    page.get_by_role("button", name="New board").click()
    rows, tiles = page.locator("#rows"), page.locator(".tile")
    rows.get_by_text("speed", exact=True).drag_to(page.get_by_text("Drag states here"))
    expect(tiles).to_have_count(1)
    rows.get_by_text("running", exact=True).drag_to(tiles.first)
    expect(tiles).to_have_count(2)
    expect(tiles.first).to_contain_text("pump/running")
    states["speed"].change(4321)
    expect(tiles.nth(1).locator(".reading")).to_have_text("4321")
    tiles.nth(1).drag_to(tiles.first, target_position={"x": 5, "y": 5})
    expect(tiles.first).to_contain_text("pump/speed")
    page.get_by_role("button", name="Done").click()
    page.reload()
    expect(tiles).to_have_count(2)


def test_a_board_by_keyboard(page: Page, owner: jetbus.Peer, states: dict[str, jetbus.State]) -> None:
    """The key b puts a row on the board; tools of a tile move it, change its kind and its width, and remove it."""
    from playwright.sync_api import expect

    owner.add_method("pump/reset", lambda depth: f"reset {depth}")
    rows = page.locator("#rows")
    rows.get_by_text("speed", exact=True).wait_for()
    rows.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")  # reset, running, speed
    page.keyboard.press("b")
    expect(page.locator(".announcement")).to_have_text("pump/speed is on the board Board.")
    page.get_by_role("button", name="Boards").click()
    page.get_by_role("button", name="Edit").click()
    for path in ("pump/running", "pump/reset", "pump"):
        add_tile(page, path)
    tiles = page.locator(".tile")
    expect(tiles).to_have_count(4)
    expect(tiles.nth(3).locator("tr")).to_have_count(2)
    tiles.first.get_by_label("Show as").select_option("gauge")
    expect(tiles.first.locator(".gauge text").first).to_have_text("1234")
    tiles.first.get_by_label("Move on").press("Enter")
    expect(tiles.nth(1)).to_contain_text("pump/speed")
    expect(tiles.nth(1).get_by_label("Move on")).to_be_focused()
    tiles.nth(1).get_by_label("Wider").press("Enter")
    expect(tiles.nth(1)).to_have_class("tile gauge w2")
    tiles.nth(3).get_by_label("Remove").press("Enter")
    expect(tiles).to_have_count(3)
    tiles.nth(2).get_by_label("What it sends").fill('["deep"]')
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Call").click()
    expect(tiles.nth(2)).to_contain_text("reset deep in")
    tiles.first.get_by_role("switch").click()
    expect(tiles.first).to_contain_text("On")
    assert states["running"].value is True


@pytest.mark.usefixtures("states")
def test_typing_while_the_bus_moves(page: Page, owner: jetbus.Peer) -> None:
    """A half typed title stays while the page is drawn again, and counts once it is complete."""
    from playwright.sync_api import expect

    page.get_by_role("button", name="Boards").click()
    page.get_by_role("button", name="New board").click()
    title = page.get_by_label("Title")
    title.fill("Pumps")
    owner.add_state("valve", 1)
    page.locator("#rows").get_by_text("valve", exact=True).wait_for()
    expect(title).to_have_value("Pumps")
    title.press("Enter")
    expect(page.get_by_label("Board", exact=True).locator("option:checked")).to_have_text("Pumps")


@pytest.mark.usefixtures("states")
def test_a_board_that_is_shared(page: Page, browser: Browser, radar: str, tmp_path: Path) -> None:
    """A board goes to others as a link or as a file."""
    from playwright.sync_api import expect

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Boards").click()
    page.get_by_role("button", name="New board").click()
    page.get_by_label("Title").fill("Pumps")
    page.get_by_label("Title").press("Enter")
    add_tile(page, "pump/speed")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("A link that holds this board was copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save file").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "Pumps.json"
    assert json.loads(file.read_text())["tiles"] == [{"path": "pump/speed", "kind": "value", "width": 1}]
    with open_page(browser, link) as other:
        expect(other.locator(".tile .reading")).to_have_text("1234")
        other.get_by_role("button", name="Keep in this browser").click()
        other.get_by_role("button", name="Edit").wait_for()
    with open_page(browser, radar + "#view=boards") as third:
        third.get_by_label("File of a board").set_input_files(file)
        expect(third.locator(".tile .reading")).to_have_text("1234")
        broken = tmp_path / "broken.json"
        broken.write_text('{"radar": "board", "version": 9}')
        third.get_by_label("File of a board").set_input_files(broken)
        third.get_by_text("this page reads version 1").wait_for()


@pytest.fixture
def board_radar(url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a Radar with a directory of boards."""
    directory = tmp_path / "boards"
    directory.mkdir()
    board = {"radar": "board", "version": 1, "title": "Line 4", "tiles": [{"path": "pump/speed", "kind": "value"}]}
    (directory / "line4.json").write_text(json.dumps(board))
    with serve_radar(url, "--boards", str(directory)) as address:
        yield address


@pytest.mark.usefixtures("states")
def test_a_board_of_the_server(browser: Browser, board_radar: str) -> None:
    """A board file of the server is opened by its name in the address; editing it makes a copy."""
    from playwright.sync_api import expect

    with open_page(browser, board_radar + "#view=boards&board=line4") as page:
        expect(page.locator(".tile .reading")).to_have_text("1234")
        page.get_by_role("button", name="Keep in this browser").click()
        page.get_by_role("button", name="Edit").wait_for()
        expect(page.get_by_label("Board", exact=True).locator("option:checked")).to_have_text("Line 4")
