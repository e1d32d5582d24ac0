"""Completion: the scripts are valid, and the tab key completes commands, options and live paths."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cli.running import Jet


def completed(jet: Jet, *words: str, **environment: str) -> list[str]:
    """What bash is offered after these words."""
    line = " ".join(["jet", *words])
    done = jet.shell("jet", COMP_WORDS=line, COMP_CWORD=str(len(words)), _JET_COMPLETE="bash_complete", **environment)
    assert done.err == ""
    return [offer.partition(",")[2] for offer in done.out.split()]


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
    """The script of each shell asks jet, and bash finds no fault with its own."""
    script = jet("completion", shell).out
    assert "_JET_COMPLETE" in script
    if shell == "bash":
        bash = shutil.which("bash")
        assert bash
        subprocess.run([bash, "-n"], input=script.encode(), check=True)
