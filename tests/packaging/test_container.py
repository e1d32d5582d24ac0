"""The container: what its file says is checked with the real programs, since building it needs more than a checkout."""

from __future__ import annotations

import json
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


def test_it_runs_and_is_healthy(steps: list[tuple[str, str]], tmp_path: Path) -> None:
    """The command of the container starts a daemon that writes a journal; the check of its health finds it."""
    command = [*words_of(steps, "ENTRYPOINT"), *words_of(steps, "CMD")]
    command = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", word) for word in command]
    command = [word.replace("/var/lib/jetd", str(tmp_path)) for word in command]
    daemon = subprocess.Popen([PROGRAMS / command[0], *command[1:]], stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        ready = daemon.stdout.readline()
        (address,) = re.findall(r"tcp=(\S+)", ready)
        asked = [word.replace("127.0.0.1:11122", address) for word in words_of(steps, "HEALTHCHECK")]
        asked[0] = str(PROGRAMS / asked[0])
        assert "$jet/" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0
    assert (tmp_path / "journal" / "journal.json").exists()
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 3


def test_ports(steps: list[tuple[str, str]]) -> None:
    """The ports that are offered are those that it listens on."""
    (offered,) = [rest for name, rest in steps if name == "EXPOSE"]
    assert set(offered.split()) == set(re.findall(r"0\.0\.0\.0:(\d+)", " ".join(words_of(steps, "CMD"))))
