"""Completion: the scripts are valid, and the tab key completes commands, options and live paths."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from jetbus.cli.main import COMMANDS
from support.jet import Jet, Terminal, completed


def test_paths(jet: Jet) -> None:
    """A path is completed from what is on the bus, states and methods."""
    assert completed(jet, "get", "plant/pump/r") == ["plant/pump/run", "plant/pump/running"]
    assert completed(jet, "--url", jet.environment["JET_URL"], "call", "plant/pump/a", JET_URL="") == ["plant/pump/add"]


def test_commands_and_options(jet: Jet) -> None:
    """Commands, their families and options are completed."""
    assert completed(jet, "wa") == ["watch"]
    assert completed(jet, "context", "u") == ["use"]
    assert completed(jet, "watch", "--un") == ["--until"]
    assert completed(jet, "get", "--output", "j") == ["json", "jsonl"]


def test_contexts(jet: Jet) -> None:
    """The names of contexts are completed."""
    jet("context", "add", "plant", jet.environment["JET_URL"])
    assert completed(jet, "get", "--context", "pl") == ["plant"]
    assert completed(jet, "context", "rm", "p") == ["plant"]


def test_no_bus_no_completions(jet: Jet) -> None:
    """Without a bus nothing is offered and nothing is said."""
    assert completed(jet, "get", "plant/", JET_URL="unix://@nobody-is-there") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(jet: Jet, shell: str) -> None:
    """The script of each shell asks jet, and that shell finds no fault with it."""
    script = jet("completion", shell).out
    assert "_JET_COMPLETE" in script
    subprocess.run([_installed(shell), "-n", "/dev/stdin"], input=script.encode(), check=True)


TYPED = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
"""How each shell is started without anybody's settings."""
BEFORE = {"bash": "", "zsh": "autoload -U compinit; compinit -D; "}


@pytest.mark.parametrize("shell", TYPED)
def test_the_tab_key(jet: Jet, shell: str) -> None:
    """In a terminal the tab key completes a path that is on the bus, and the line can be run."""
    (jet.folder / "jet.script").write_text(jet("completion", shell).out)
    command = [_installed(shell), *TYPED[shell][1:]]
    with Terminal(command, {**jet.environment, "PS1": "ready> "}, 120, jet.folder) as typing:
        typing.until("ready> ")
        typing.press(BEFORE[shell] + "source ./jet.script; echo lo''aded\n")
        typing.until("loaded")
        typing.press("jet get -o jsonl plant/tank/la\t")
        typing.until("plant/tank/label")
        typing.press("\n")
        assert '"m³"' in typing.until('"range":[0,10]')
        typing.press("exit\n")
        typing.end()


def test_fish(jet: Jet) -> None:
    """fish offers the paths that are on the bus, and commands with what they are for."""
    (jet.folder / "jet.fish").write_text(jet("completion", "fish").out)
    asked = "source jet.fish; complete -C 'jet get plant/pump/r'; complete -C 'jet kic'"
    done = jet.run_command([_installed("fish"), "--no-config", "-c", asked], b"", {})
    offered = [line.split("\t") for line in done.out.splitlines()]
    assert [words[0] for words in offered] == ["plant/pump/run", "plant/pump/running", "kick"]
    assert offered[-1][1] == COMMANDS["kick"].help


def _installed(shell: str) -> str:
    """Return the path of a shell, or skip the test without it."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found
