"""Errors as people see them: every transcript is run, exit code, stdout and stderr are compared word for word.

A transcript starts with `==` and what it shows. `$` is a line of the shell, `!` its exit code, `>` a line on stdout,
anything else a line on stderr. {url} is the bus with the plant, {bare} one with nothing on it and without a journal,
{dead} a port where nobody listens.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from jetbus.cli.exit_codes import Code
from support.daemon import Daemon
from support.jet import WORKERS, Done, Jet, chosen
from support.plant import url_of

Daemons = Callable[..., Daemon]

FOLDER = Path(__file__).parent / "transcripts"


class Transcript(NamedTuple):
    """One command and what it must say."""

    title: str
    line: str
    code: int
    out: list[str]
    err: list[str]


def transcripts() -> Iterator[Transcript]:
    for file in sorted(FOLDER.glob("*.txt")):
        for part in file.read_text(encoding="utf-8").split("\n== ")[1:]:
            title, command, code, *rest = part.strip().splitlines()
            out = [line[2:] for line in rest if line.startswith("> ")]
            err = [line for line in rest if not line.startswith("> ")]
            yield Transcript(
                f"{file.stem}: {title}", command.removeprefix("$ "), int(code.removeprefix("! ")), out, err
            )


TRANSCRIPTS = list(transcripts())


class Heard(NamedTuple):
    """Output of a command, with placeholders for what differs from run to run."""

    done: Done
    known: dict[str, str]

    def filled(self, text: str) -> str:
        for name, value in self.known.items():
            text = text.replace(name, value)
        return text


@pytest.fixture(scope="module")
def heard(
    request: pytest.FixtureRequest,
    plant_daemon: Daemon,
    shared_daemons: Daemons,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Heard]]:
    """The transcripts, a few at a time, each in a folder of its own."""
    url, bare = url_of(plant_daemon), url_of(shared_daemons())

    def run(transcript: Transcript) -> tuple[str, Heard]:
        jet = Jet(url, tmp_path_factory.mktemp("transcript"))
        known = {"{url}": url, "{bare}": bare, "{dead}": f"jet://127.0.0.1:{port}", "{folder}": str(jet.folder)}
        heard = Heard(Done(0, "", ""), known)
        return transcript.title, heard._replace(done=jet.shell(heard.filled(transcript.line)))

    with socket.socket() as dead, ThreadPoolExecutor(WORKERS) as pool:
        dead.bind(("127.0.0.1", 0))  # taken, and nobody listens
        port = dead.getsockname()[1]
        yield dict(pool.map(run, chosen(request, "transcript")))


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.title)
def test_transcripts(heard: dict[str, Heard], transcript: Transcript) -> None:
    """A command that fails says so in one sentence with cause and next step, and with the right exit code."""
    said = heard[transcript.title]
    assert said.done.err.splitlines() == [said.filled(line) for line in transcript.err]
    assert said.done.code == transcript.code
    assert said.done.out.splitlines() == [said.filled(line) for line in transcript.out]


def test_every_exit_code_has_a_transcript() -> None:
    """There is a transcript for every exit code but Ctrl-C's, which has tests of its own."""
    assert {transcript.code for transcript in TRANSCRIPTS} == set(Code) - {Code.INTERRUPTED}


def test_debug_shows_a_traceback(jet: Jet) -> None:
    """With --debug, and only then, a failure shows where it came from, and its exit code stays."""
    code, _, err = jet("get", "plant/nothing", "--debug")
    assert code == 5
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("jet: there is no plant/nothing on the bus")


def test_garbage_in_arguments(jet: Jet) -> None:
    """Bytes that are no UTF-8 are refused by name, and so are options that nobody knows."""
    code, out, err = jet.shell("jet get \"$(printf 'plant/\\377')\"")
    assert (code, out) == (2, "")
    assert err == "jet: 'plant/\\udcff' is not UTF-8; paths and values must be\n"


def test_a_full_disk(jet: Jet) -> None:
    """Output that cannot be written is reported."""
    assert jet.shell("jet get plant/pump/mode > /dev/full") == (
        2,
        "",
        "jet: output: No space left on device; check the path and its permissions\n",
    )


def test_somebody_else_answers(jet: Jet) -> None:
    """At a port where something else than a daemon answers, it says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        running = jet.start("get", "x", "--url", f"jet://127.0.0.1:{port}")
        with running:
            other, _ = server.accept()
            with other:
                other.recv(10)
                other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                code, _, err = running.end()
    assert code == 3
    assert err.endswith("is that a Jet daemon?\n")
