"""The container: what its file says is checked with the real programs, since building it needs more than a checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The steps of the file: word and the rest, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, rest in (line.split(None, 1) for line in lines)]


def words_of(steps: list[tuple[str, str]], word: str) -> list[str]:
    """The words of the command that one step gives as a JSON list."""
    (rest,) = [rest for name, rest in steps if name == word]
    words: list[str] = json.loads(rest[rest.index("[") :])
    return words


def test_what_is_copied_is_there(steps: list[tuple[str, str]]) -> None:
    """Every copied file exists and is let through to the builder."""
    sources = [source for name, rest in steps if name == "COPY" for source in rest.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == let_through


def settings_of(steps: list[tuple[str, str]]) -> dict[str, str]:
    """The variables that the image sets."""
    return dict(word.split("=", 1) for name, rest in steps if name == "ENV" for word in rest.split())


def test_it_runs_and_is_healthy(steps: list[tuple[str, str]], tmp_path: Path) -> None:
    """The container starts a daemon with a journal and Radar; the check of its health finds it."""
    settings = {name: re.sub(r":\d+$", ":0", value) for name, value in settings_of(steps).items()}
    settings = {name: value.replace("/var/lib/jetd", str(tmp_path)) for name, value in settings.items()}
    command = words_of(steps, "ENTRYPOINT")
    daemon = subprocess.Popen(
        [PROGRAMS / command[0], *command[1:]], stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
    )
    try:
        assert daemon.stdout is not None
        ready = dict(word.split("=", 1) for word in daemon.stdout.readline().split()[1:])
        assert ready.keys() == {"tcp", "ws", "binary", "radar"}
        assert all(re.search(r"\b(127\.0\.0\.1|localhost):", address) for address in ready.values())
        asked = [word.replace("localhost:11122", ready["tcp"]) for word in words_of(steps, "HEALTHCHECK")]
        asked[0] = str(PROGRAMS / asked[0])
        assert "$jet/" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0
    assert (tmp_path / "journal" / "journal.json").exists()
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 3


def test_ports(steps: list[tuple[str, str]]) -> None:
    """The ports that are offered are those that it listens on, and on loopback."""
    (offered,) = [rest for name, rest in steps if name == "EXPOSE"]
    addresses = [value for value in settings_of(steps).values() if ":" in value]
    assert [address.partition(":")[0] for address in addresses] == ["localhost"] * 4
    assert set(offered.split()) == {address.partition(":")[2] for address in addresses}


def test_packages_are_those_of_the_lock(steps: list[tuple[str, str]]) -> None:
    """Everything that is installed has a version and a hash, or was built here from the sources."""
    installs = [part for name, rest in steps if name == "RUN" for part in rest.split("&&") if "pip " in part]
    assert len(installs) == 4
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install
    assert all("--no-build-isolation" in install for install in installs if "pip wheel" in install)
