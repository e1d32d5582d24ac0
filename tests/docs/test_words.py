"""Words that newcomers look for lead to a page, on the site and in the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus
from jetbus.cli.words import WORDS, find_word, list_names
from support.daemon import Daemon
from support.docs import DOCS
from support.jet import Jet
from support.plant import url_of

WANTED = (
    *("subscribe", "publish", "retained", "QoS", "topic", "backup"),
    *("time zone", "Jupyter", "pandas", "Grafana", "Docker", "Windows"),
    *("alarm", "notification", "MQTT", "OPC UA", "HTTP", "Excel", "unit", "schema"),
    *("callback", "asyncio", "thread", "timeout", "failover", "upgrade"),
)
SYSTEMS = ("MQTT", "NATS", "Redis", "OPC UA", "jetbus")
COMING_FROM = (DOCS / "coming-from.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jet]:
    """The command on a bus with plant/speed, which changes, and plant/start."""
    folder = tmp_path_factory.mktemp("words")
    with Daemon.start("--journal", str(folder / "log")) as daemon, jetbus.Peer(url_of(daemon)) as owner:
        speed = owner.add_state("plant/speed", 1200, on_set=lambda _rpm: None)
        owner.add_method("plant/start", lambda: "started")
        speed.change(1100)
        owner.info()
        yield Jet(url_of(daemon), folder)


@pytest.mark.parametrize("word", WANTED)
def test_words_lead_to_a_page(bus: Jet, word: str) -> None:
    """`jet help WORD` answers in any case of letters and names a page that has the word, or whose subject it is."""
    done = bus("help", *word.upper().split())
    assert done.code == 0, done
    row = json.loads(done.out)
    assert row["word"] == word
    assert (DOCS / row["page"].partition("#")[0]).exists()
    assert f"**{word}**" in (DOCS / "words.md").read_text(encoding="utf-8"), "a search on the site finds it there"


@pytest.mark.parametrize(
    ("name", "word"), [("opc", "OPC UA"), ("rest", "HTTP"), ("units", "unit"), ("email", "notification")]
)
def test_other_names_lead_to_the_word(bus: Jet, name: str, word: str) -> None:
    """Other names of a word, and its plural, get the same answer."""
    assert json.loads(bus("help", name).out)["word"] == word


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *((typed, f"did you mean {meant}?") for typed, meant in (("subscripe", "subscribe"), ("grafanna", "Grafana"))),
        *(
            (name, "`jet help words` lists the words, `jet --help` the commands")
            for name in ("emission", "camera", "fax")
        ),
    ],
)
def test_only_typing_errors_are_guessed(bus: Jet, name: str, hint: str) -> None:
    """A word that is not in the table gets a guess if it is a typing error, and else the way to all words."""
    assert bus("help", name).err == f"jet: there is no help about {name}; {hint}\n"


def test_no_word_has_two_answers() -> None:
    """Each word and each of its other names stands in the table once, and is found by its name."""
    names = list_names()
    assert len({name.casefold() for name in names}) == len(names)
    for word, answer in WORDS.items():
        for name in (word, *answer.others):
            found = find_word(name)
            assert found is not None
            assert found[0] == word, name


def test_topics_and_commands_are_explained(bus: Jet) -> None:
    """`jet help` knows topics, commands and their subcommands; alone it is `jet --help`."""
    assert "'plant/** value>7'" in bus("help", "rules").out
    assert "yesterday 06:45" in bus("help", "instants").out
    assert bus("help", "user", "add").out == bus("user", "add", "--help").out
    assert bus("help", "get").out == bus("get", "--help").out
    assert bus("help").out == bus("--help").out


def test_ten_tasks_side_by_side() -> None:
    """The page has ten tasks, and each of them for every system."""
    tasks = re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## )", COMING_FROM, re.MULTILINE | re.DOTALL)
    assert len(tasks) == 10
    for task, text in tasks:
        assert tuple(re.findall(r"^\| ([\w ]+) \|", text, re.MULTILINE)[1:]) == SYSTEMS, task


def jet_lines() -> list[str]:
    rows = "\n".join(re.findall(r"^\| jetbus \|(.*)\|$", COMING_FROM, re.MULTILINE))
    return re.findall(r"`(jet [^`]+)`", rows)


@pytest.mark.parametrize("line", jet_lines())
def test_lines_of_the_tasks_work(bus: Jet, line: str) -> None:
    """Each line of jetbus does what the page says, on a bus that has such states."""
    if line.startswith("jet add"):
        line = line.replace("plant/speed", "plant/other")
    if "watch" in line or "add" in line:
        line += " --for 200ms"
    done = bus.shell(line)
    if "-1s" in line:
        assert done.code in (0, 5), "the journal may be younger than a second"
    else:
        assert (done.code, done.err) == (0, ""), done


def test_files_of_the_sources_are_not_advice() -> None:
    """No message of a command sends its reader to a file of the sources, which an installation does not have."""
    folder = Path(jetbus.__file__).parent / "cli"
    for file in folder.rglob("*.py"):
        for text in re.findall(r'f?"[^"\n]*"', file.read_text(encoding="utf-8")):
            assert not re.search(r"\bdocs/\w+\.md|\bMakefile\b|\bsrc/jetbus", text), f"{file}: {text}"
