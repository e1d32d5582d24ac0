"""Every example of the help, of docs/cli.md and of the page of each command is run against a real daemon."""

from __future__ import annotations

import contextlib
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

import jetbus
from jetbus.cli.main import COMMANDS
from support.daemon import Daemon
from support.delta import make_tables
from support.jet import DEADLINE_S, WORKERS, Done, Jet, chosen
from support.plant import VALUES, record, url_of, with_users
from support.program import Program

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "cli.md", *sorted((DOCS / "cli").glob("*.md"))]
ALL = dict(runpy.run_path(str(DOCS / "cli_reference.py"))["commands"]())
SCREEN = (24, 80)
OTHER_LISTENERS = ("JET_WS", "JET_UNIX", "JET_BINARY", "JET_BINARY_UNIX")
"""Where an example of the daemon would listen as well; their usual addresses may be taken on this machine."""


def lines() -> list[str]:
    """All lines of the pages' blocks of shell, without comments, and all examples of the help, each once."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    of_page = [re.sub(r"\s+# .*$", "", line) for block in blocks for line in block.splitlines()]
    of_help = [example.line for command in ALL.values() for example in command.examples]
    return list(dict.fromkeys([*of_help, *(line for line in of_page if line and not line.startswith("#"))]))


LINES = [line for line in lines() if not line.startswith(("jet pipeline", "jet sql"))]
"""Those that need Spark are run by test_spark.py, in one Spark."""
ABOUT_USERS = re.compile(r"--user |jet user|jet access")
ALARMS = '[alarm.hot]\nrule = "plant/**"\nwhen = "num > 80"\npriority = "high"\n'
CONTEXTS = '[contexts.plant]\nurl = "jet://plant.local"\n[contexts.lab]\nurl = "jets://lab.local"\n'


def folder(base: Path, line: str = "") -> Path:
    """Surroundings of an example: a users file, passwords, two contexts, journals and tables."""
    with_users(base)
    for name in ("log", "logs/a", "logs/b"):
        if name.partition("/")[0] in re.findall(r"\w+", line):
            record(base / name)
    if "alarms.toml" in line:
        (base / "alarms.toml").write_text(ALARMS)
    if line.startswith("jet tables"):
        make_tables(base / "tables")
    (base / "config" / "jet").mkdir(parents=True)
    (base / "config" / "jet" / "contexts.toml").write_text(CONTEXTS)
    return base


def run(jet: Jet, line: str) -> Done:
    if not line.startswith("jet daemon"):
        return jet.shell(line)
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**jet.environment, **dict.fromkeys(OTHER_LISTENERS, "off")},
        cwd=jet.folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready tcp=")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    return Done(process.returncode, "", "")


@contextlib.contextmanager
def alarms_running(url: str, base: Path) -> Iterator[None]:
    """The alarms that examples list and acknowledge."""
    (base / "alarms.toml").write_text(ALARMS)
    words = "alarms", "run", str(base / "alarms.toml"), "--url", url
    with Program(sys.executable, "-m", "jetbus.cli", *words), jetbus.Peer(url) as peer:
        peer.wait_for("alarms/position", timeout_s=DEADLINE_S)
        yield


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest,
    plant_daemon: Daemon,
    guarded_daemon: Daemon,
    shared_daemons: Callable[..., Daemon],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Done]]:
    """The examples, a few at a time, each in a folder of its own: at a daemon with users if it is about these."""
    lines = chosen(request, "line")
    urls = {False: url_of(plant_daemon), True: url_of(guarded_daemon)}

    def made(line: str) -> Jet:
        found = Jet(urls[bool(ABOUT_USERS.search(line))], folder(tmp_path_factory.mktemp("example"), line))
        found.environment["FAR_URL"] = url_of(shared_daemons())
        return found

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(WORKERS) as pool:
        if any("jet alarms" in line for line in lines):
            stack.enter_context(alarms_running(urls[False], tmp_path_factory.mktemp("alarms")))
        for url in urls.values():
            stack.enter_context(jetbus.Peer(url, name="display"))
        yield dict(zip(lines, pool.map(run, map(made, lines), lines), strict=True))
        with jetbus.Peer(urls[False]) as peer:
            for path in ("plant/pump/mode", "plant/pump/speed"):
                peer.set(path, VALUES[path])


@pytest.mark.parametrize("line", LINES)
def test_examples(ran: dict[str, Done], line: str) -> None:
    """An example does what it says: exit code 0, no complaint."""
    done = ran[line]
    assert done.code == 0, done
    assert done.err == "" or "limit" in done.err, done


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_two_examples(name: str) -> None:
    """The help of every command has a text and two examples of that very command."""
    command = ALL[name]
    assert len(command.examples) == 2
    assert all(name in example.line for example in command.examples)
    assert command.help


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_has_the_forms_of_output(name: str) -> None:
    """Every command takes --output with the same five forms."""
    (option,) = [parameter for parameter in ALL[name].params if "--output" in parameter.opts]
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == ["table", "json", "jsonl", "csv", "value"]


def test_help(jet: Jet) -> None:
    """`jet --help` fits a screen of 24 lines, prompt and all, and lists every command; so does `jet` alone."""
    code, out, err = jet("--help")
    lines, columns = SCREEN
    assert (code, err) == (0, "")
    assert len(out.splitlines()) < lines
    assert max(map(len, out.splitlines())) <= columns
    listed = [line for line in out.splitlines()[2:] if line][: (len(COMMANDS) + 1) // 2]
    named = [cell[7:18].strip() for start in (0, 41) for line in listed if (cell := line[start : start + 41].rstrip())]
    assert named == list(COMMANDS)
    assert jet().out == out


@pytest.mark.parametrize("family", ["journal", "tables", "user", "context", "bench", "access"])
def test_a_family_alone(jet: Jet, family: str) -> None:
    """A noun without its verb is told which there are, a line each, with the exit code of a wrong command line."""
    code, out, err = jet(family)
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"Usage: jet {family} [OPTIONS] COMMAND [ARGS]..."
    verbs = [name.split()[2] for name in ALL if name.startswith(f"jet {family} ")]
    assert [line.split()[0] for line in err.partition("Commands:\n")[2].splitlines()] == sorted(verbs)


def test_help_of_a_command(jet: Jet) -> None:
    """The help of a command ends with its examples, each with what it is for."""
    out = jet("watch", "--help").out
    assert out.partition("Examples:\n")[2].splitlines()[:2] == [
        "  jet watch 'plant/**' --for 1s",
        "      everything below plant, for one second",
    ]
