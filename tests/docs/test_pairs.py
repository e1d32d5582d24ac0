"""The owners and watchers on the pages fit together, in whatever language: each pair runs against a real daemon."""

from __future__ import annotations

import ast
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from docs.test_blocks import BLOCKS, at
from support.daemon import Daemon
from support.docs import DEADLINE_S, ROOT, Block

NODE_JET = ROOT / "tests" / "interop" / "node_modules" / "jet2"
Lines = queue.SimpleQueue[str]

OWNERS = [block for block in BLOCKS if block.word == "own"]
WATCHERS = [block for block in BLOCKS if block.word == "watch"]
SOCKETS = [block for block in BLOCKS if block.word == "socket"]
PAIRS = [
    pytest.param(
        owner,
        watcher,
        id=f"{owner.language} of {owner.where} owns, {watcher.language} watches",
        marks=[pytest.mark.interop] * ("js" in (owner.language, watcher.language)),
    )
    for owner, watcher in product(OWNERS, WATCHERS)
    if owner.page == watcher.page
]


def command_of(block: Block, daemon: Daemon) -> list[str]:
    text = at(daemon, block.text)
    if block.language == "python":
        return [sys.executable, "-c", text]
    node = shutil.which("node")
    assert node, "there is no node on the PATH: run make test, which installs it"
    assert NODE_JET.is_dir(), "node-jet 2 is not installed: run make test, which installs it"
    # A browser has WebSocket, and so has Node.js from version 22 on.
    text = f"globalThis.WebSocket ??= require({str(NODE_JET.with_name('ws'))!r});\n{text}"
    return [node, "-e", text.replace("require('node-jet')", f"require({str(NODE_JET)!r})")]


@pytest.fixture
def lines_of(daemon: Daemon) -> Iterator[Callable[[Block], Lines]]:
    """Run a block in the background; gives its lines as they come."""
    started: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def run(block: Block) -> Lines:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command_of(block, daemon), stdout=subprocess.PIPE, text=True, env=environment)
        lines: Lines = queue.SimpleQueue()

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


@pytest.mark.parametrize(("owner", "watcher"), PAIRS)
def test_an_owner_and_a_watcher(
    owner: Block, watcher: Block, daemon: Daemon, lines_of: Callable[[Block], Lines]
) -> None:
    """An owner and a watcher of a page fit together: the state is seen, set with a limit, and seen to change."""
    lines_of(owner)
    with daemon.connect() as witness:
        witness.result("fetch", {"id": "added", "path": {"equals": "pump/speed"}})
        assert witness.receive(DEADLINE_S)["params"]["event"] == "add"
    seen = lines_of(watcher)
    lines = [seen.get(timeout=DEADLINE_S)]
    assert lines[0].startswith("add pump/speed")
    while lines[-1] != "change pump/speed 2700":
        lines.append(seen.get(timeout=DEADLINE_S))
    assert lines[-2].endswith(" pump/speed 3000")


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=block.where, marks=[pytest.mark.interop] * (block.language == "js")) for block in SOCKETS],
)
def test_a_watcher_with_a_socket(block: Block, lines_of: Callable[[Block], Lines]) -> None:
    """A watcher without any library sees what an owner does."""
    seen = lines_of(block)
    read: Callable[[str], Any] = json.loads if block.language == "js" else ast.literal_eval
    assert read(seen.get(timeout=DEADLINE_S)) == {"id": 1, "result": True}
    lines_of(next(owner for owner in OWNERS if owner.language == "python"))
    assert read(seen.get(timeout=DEADLINE_S))["params"]["event"] == "add"
    assert read(seen.get(timeout=DEADLINE_S))["params"]["event"] == "change"


def test_there_are_pairs_in_both_languages() -> None:
    """There are owners and watchers in both languages, so that the tests above cannot pass by finding none."""
    assert {block.language for block in OWNERS} == {block.language for block in WATCHERS} == {"python", "js"}
    assert {block.language for block in SOCKETS} == {"python", "js"}
