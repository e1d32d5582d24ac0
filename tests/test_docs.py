"""The documentation is true: links lead somewhere, tables are complete. What blocks do is tested in tests/docs."""

from __future__ import annotations

import re
import runpy
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jetbus.bus.bus import Bus
from jetbus.bus.services import RARE
from jetbus.cli.main import jet
from jetbus.daemon.config import SETTINGS, parser
from jetbus.daemon.metrics import JOURNAL_NUMBERS, NUMBERS, RATES
from jetbus.errors import Invalid, JetError
from jetbus.rules import PATH_TESTS, VALUE_TESTS
from support.daemon import Daemon
from support.docs import DEADLINE_S, DOCS, PAGES, ROOT, without_blocks

# -- links


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists and, if it has one, an anchor that exists."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    """Every test that a page names as a proof is there."""
    for name in re.findall(r"`(tests/[\w/]+(?:\.\w+)?)`", without_blocks(page)):
        assert (ROOT / name).exists(), name


def test_every_page_is_on_the_front_page() -> None:
    """The front page of the documentation leads to every page, and its page of the command `jet` to every command."""
    linked = set(re.findall(r"^- \[.*?\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE))
    commands = (DOCS / "cli.md").read_text("utf-8")
    linked |= set(re.findall(r"^\| \[`jet .*?\]\((cli/[\w-]+\.md)\)", commands, re.MULTILINE))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - linked == {"index.md"}


def test_the_pages_are_found() -> None:
    """The pages that people look for first are there."""
    names = {page.name for page in PAGES}
    assert names >= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "daemon.md", "protocol.md", "design.md", "api.md"}


@pytest.mark.parametrize("name", ["peers", "history", "spark"])
def test_guides_are_short(name: str) -> None:
    """A guide takes ten minutes, with its examples, and leads to the reference of its subject."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1000
    assert f"({name}-reference.md" in text


# -- tables


def first_cells(page: Path) -> set[str]:
    """Return the code in the first cells of all rows of all tables."""
    rows = re.findall(r"^\|([^|]*)\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {word for cell in rows for word in re.findall(r"`([^`]+)`", cell)}


def test_what_is_generated_is_up_to_date() -> None:
    """Names, errors, figures, settings and commands are what the code says; docs/reference.py --write makes them so."""
    made = runpy.run_path(str(DOCS / "reference.py"))
    for page in made["PARTS"]:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert text == made["with_parts"](page, text), f"{page}: python docs/reference.py --write"
    commands = {f"cli/{page.name}": page.read_text(encoding="utf-8") for page in (DOCS / "cli").glob("*.md")}
    assert commands == made["COMMAND_PAGES"](), "docs/cli: python docs/reference.py --write"


def test_every_limit_is_explained() -> None:
    """The page of the daemon says of each limit what happens when it is crossed."""
    limits = {row.name for row in SETTINGS if row.name.endswith(("_max", "_bytes"))}
    section = (DOCS / "daemon.md").read_text(encoding="utf-8").partition("\n## Limits\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == limits


def test_every_figure_is_explained() -> None:
    """The page of the daemon explains every state below $jet/ and names every metric."""
    page = (DOCS / "daemon.md").read_text(encoding="utf-8")
    names = [
        *(number.name for number in NUMBERS),
        *RATES.values(),
        "version",
        "pid",
        "listening",
        "limits",
        "limit_hits",
    ]
    assert [name for name in names if f"`$jet/{name}`" not in page] == []
    assert [number.metric for number in (*NUMBERS, *JOURNAL_NUMBERS) if f"`{number.metric}`" not in page] == []


def test_every_part_is_in_the_design() -> None:
    """The table of the design has a row for each part of the package."""
    parts = {path.stem for path in (ROOT / "src" / "jetbus").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert parts - {"__init__", "__pycache__"} - first_cells(DOCS / "design.md") == set()


def test_every_operator_is_in_the_protocol() -> None:
    """The page of the protocol has a row for each operator of fetch rules."""
    assert (PATH_TESTS.keys() | VALUE_TESTS.keys()) - first_cells(DOCS / "protocol.md") == set()


def test_every_service_is_in_the_protocol() -> None:
    """The page of the protocol has a row for each service."""
    assert (RARE.keys() | Bus()._frequent.keys()) - first_cells(DOCS / "protocol.md") == set()


def _kinds(kind: type[JetError]) -> Iterator[type[JetError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def test_every_error_key_is_in_the_protocol() -> None:
    """The page of the protocol explains every key of error data."""
    keys = {kind.key for kind in _kinds(Invalid) if issubclass(kind, Invalid)}
    assert keys - first_cells(DOCS / "protocol.md") == set()


# -- systemd


def test_the_unit_file_uses_flags_that_exist() -> None:
    """The unit starts jetd with flags that exist and reloads it with the signal it knows."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", (DOCS / "jetd.service").read_text(encoding="utf-8"), re.MULTILINE))
    command, *arguments = unit["ExecStart"].split()
    assert command.endswith("/jetd")
    assert parser().parse_args(arguments)
    assert unit["Type"] == "notify"
    assert unit["ExecReload"].endswith("kill -HUP $MAINPID")


HARDENED = ("MemoryMax", "CapabilityBoundingSet", "SystemCallFilter", "UMask", "NoNewPrivileges", "ProtectSystem")


@pytest.mark.parametrize("file", sorted(DOCS.glob("*.service")), ids=lambda file: file.stem)
def test_units_are_hardened(file: Path) -> None:
    """Every unit limits memory, capabilities, system calls and modes, and starts again after a failure."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert [name for name in HARDENED if name not in unit] == []
    assert (unit["CapabilityBoundingSet"], unit["SystemCallFilter"]) == ("", "@system-service")
    assert (unit["Restart"], unit["UMask"]) == ("on-failure", "0027")
    assert f"({file.name})" in (DOCS / "howto" / "service.md").read_text(encoding="utf-8").replace("../", "")


@pytest.mark.parametrize("file", sorted(DOCS.glob("jet-*.service")), ids=lambda file: file.stem)
def test_units_use_options_that_exist(file: Path) -> None:
    """The units start commands of jet with options that exist."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    command, *words = unit["ExecStart"].split()
    assert command.endswith("/jet")
    found: click.Command | None = jet
    while isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words.pop(0))
    assert found is not None
    assert found.make_context(found.name, words).params


def test_systemd_is_notified(tmp_path: Path) -> None:
    """The daemon tells systemd when it is ready and when it stops, as Type=notify needs it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_S)
        with Daemon.start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"STOPPING=1"
