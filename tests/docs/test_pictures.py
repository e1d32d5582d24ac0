"""The pictures of the pages are whole, need nothing from elsewhere, and show commands that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import click
import pytest

from jetbus.cli.main import jet
from support.docs import DOCS, PAGES

PICTURES = sorted(DOCS.rglob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_are_whole(picture: Path) -> None:
    """A picture is one well-formed document that loads nothing and runs nothing."""
    text = picture.read_text(encoding="utf-8")
    assert Xml.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own file
    assert set(re.findall(r"https?://[^\s\"')]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in text


def test_pictures_are_used() -> None:
    """Every picture is on a page."""
    shown = {name for page in PAGES for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))}
    assert {picture.name for picture in PICTURES} <= {Path(name).name for name in shown}


def check_jet(words: list[str]) -> None:
    """The command is there and takes these words."""
    with click.Context(jet) as context:
        command: Any = jet.get_command(context, words[0])
    assert command, words
    if isinstance(command, click.Group):
        command, words = command.commands[words[1]], words[1:]
    command.make_parser(click.Context(command)).parse_args(words[1:])


def test_the_bus_that_is_watched() -> None:
    """The picture of a bus being watched shows the commands that draw it, and they are commands of jet."""
    drawing = runpy.run_path(str(DOCS / "picture.py"))
    text = "".join(Xml.fromstring(drawing["PICTURE"].read_text(encoding="utf-8")).itertext())  # noqa: S314
    plain = text.replace("\xa0", " ")
    for words in drawing["SHOWN"]:
        check_jet(words)
        assert f"$ {drawing['shown'](words)}" in plain
    check_jet(drawing["DEMO"])
    assert "plant/pump/2/" in plain
    assert "measuring" not in plain
