"""The documentation is true: links lead somewhere, tables are complete, code runs.

A fenced block whose info string has a second word is run: ```` ```python run ```` and ```` ```sh run ```` each by
itself, the README's `own` and `watch` together. The usual ports are replaced by those of a daemon of the test's own.
"""

from __future__ import annotations

import os
import queue
import re
import runpy
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jetbus.bus.bus import Bus
from jetbus.bus.services import RARE
from jetbus.daemon.about import NUMBERS, RATES
from jetbus.daemon.config import SETTINGS, parser
from jetbus.errors import Invalid, JetError
from jetbus.rules import PATH_TESTS, VALUE_TESTS
from support.daemon import Daemon

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
NODE_JET = ROOT / "tests" / "interop" / "node_modules" / "jet2"
DEADLINE_S = 30.0


class Block(NamedTuple):
    """A fenced block: where it is, its language, what is to be done with it, its text."""

    where: str
    language: str
    purpose: str
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w+)(?: (\w+))?\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(f"{page.name}:{line}", found[2], found[3] or "", found[4])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def without_blocks(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


# -- links


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists and, if it has one, an anchor that exists."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


def test_the_pages_are_found() -> None:
    """The pages that people look for first are there."""
    names = {page.name for page in PAGES}
    assert names >= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "daemon.md", "protocol.md", "design.md", "api.md"}


# -- tables


def first_cells(page: Path) -> set[str]:
    """What stands in code style in the first cell of any row of any table."""
    rows = re.findall(r"^\|([^|]*)\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {word for cell in rows for word in re.findall(r"`([^`]+)`", cell)}


def test_the_table_of_settings_is_up_to_date() -> None:
    """The table of settings is what the code says; docs/settings.py --write brings it up to date."""
    made = runpy.run_path(str(DOCS / "settings.py"))
    page = (DOCS / "daemon.md").read_text(encoding="utf-8")
    assert page == made["with_table"](page)
    assert all(f"`{row.flag} " in page for row in SETTINGS)


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
    assert [number.metric for number in NUMBERS if f"`{number.metric}`" not in page] == []


def test_every_operator_is_in_the_protocol() -> None:
    """The page of the protocol has a row for each operator of fetch rules."""
    assert (PATH_TESTS.keys() | VALUE_TESTS.keys()) - first_cells(DOCS / "protocol.md") == set()


def test_every_service_is_in_the_protocol() -> None:
    """The page of the protocol has a row for each service."""
    assert (RARE.keys() | Bus()._busy.keys()) - first_cells(DOCS / "protocol.md") == set()


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


def test_systemd_is_notified(tmp_path: Path) -> None:
    """The daemon tells systemd when it is ready and when it stops, as Type=notify needs it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_S)
        with Daemon.start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"STOPPING=1"


# -- code


def at(daemon: Daemon, text: str) -> str:
    """The text with the usual ports replaced by those of a daemon."""
    tcp, ws = (str(daemon.address(kind)[1]) for kind in ("tcp", "ws"))
    text = text.replace("localhost:11122", f"127.0.0.1:{tcp}").replace("localhost:11123", f"127.0.0.1:{ws}")
    return text.replace('("localhost", 11122)', f'("127.0.0.1", {tcp})')


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.purpose == "run"], ids=lambda block: f"{block.where} {block.language}"
)
def test_code_runs(block: Block, daemon: Daemon, tmp_path: Path) -> None:
    """A block that is marked to be run ends with success."""
    command = {"python": [sys.executable, "-c"], "sh": ["sh", "-eu", "-c"]}[block.language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [*command, at(daemon, block.text)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_some_code_runs() -> None:
    """There is code to run, so that the test above cannot pass by finding none."""
    languages = {block.language for block in BLOCKS if block.purpose == "run"}
    assert languages == {"python", "sh"}


def command_of(block: Block, daemon: Daemon) -> list[str]:
    text = at(daemon, block.text)
    if block.language == "python":
        return [sys.executable, "-c", text]
    node = shutil.which("node")
    assert node, "there is no node on the PATH: run make test, which installs it"
    assert NODE_JET.is_dir(), "node-jet 2 is not installed: run make test, which installs it"
    return [node, "-e", text.replace("require('node-jet')", f"require({str(NODE_JET)!r})")]


@pytest.fixture
def lines_of(daemon: Daemon) -> Iterator[Callable[[Block], queue.SimpleQueue[str]]]:
    """Run a block of the README in the background; gives its lines as they come."""
    started: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def run(block: Block) -> queue.SimpleQueue[str]:
        process = subprocess.Popen(command_of(block, daemon), stdout=subprocess.PIPE, text=True)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line.strip())

        reader = threading.Thread(target=read)
        reader.start()
        started.append((process, reader))
        return lines

    yield run
    for process, reader in started:
        process.kill()
        process.wait()
        reader.join()
        if process.stdout:
            process.stdout.close()


README = {
    (block.language, block.purpose): block
    for block in blocks_of(ROOT / "README.md")
    if block.purpose not in ("", "run")
}
PAIRS = [
    pytest.param(owner, watcher, id=f"{owner} owns, {watcher} watches", marks=[pytest.mark.interop] * ("js" in pair))
    for pair in [("python", "python"), ("js", "js"), ("python", "js"), ("js", "python")]
    for owner, watcher in [pair]
]


@pytest.mark.parametrize(("owner", "watcher"), PAIRS)
def test_the_readme_owns_and_watches(
    owner: str, watcher: str, daemon: Daemon, lines_of: Callable[[Block], queue.SimpleQueue[str]]
) -> None:
    """The README's owner and watcher fit together: the state is seen, set with a limit, and seen to change."""
    lines_of(README[owner, "own"])
    with daemon.connect() as witness:
        witness.result("fetch", {"id": "added", "path": {"equals": "pump/speed"}})
        assert witness.receive(DEADLINE_S)["params"]["event"] == "add"
    seen = lines_of(README[watcher, "watch"])
    lines = [seen.get(timeout=DEADLINE_S)]
    assert lines[0].startswith("add pump/speed")
    while lines[-1] != "change pump/speed 2700":
        lines.append(seen.get(timeout=DEADLINE_S))
    assert lines[-2].endswith(" pump/speed 3000")


def test_the_readme_watches_with_a_socket(lines_of: Callable[[Block], queue.SimpleQueue[str]]) -> None:
    """The README's watcher without any library sees what the README's owner does."""
    seen = lines_of(README["python", "socket"])
    assert seen.get(timeout=DEADLINE_S) == "{'id': 1, 'result': True}"
    lines_of(README["python", "own"])
    assert "'event': 'add'" in seen.get(timeout=DEADLINE_S)
    assert "'event': 'change'" in seen.get(timeout=DEADLINE_S)
