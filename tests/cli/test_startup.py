"""get and set start quickly: they import little, and no command imports what only others need."""

from __future__ import annotations

import sys

import pytest

from support.jet import Jet

HEAVY = [
    "rich",
    "pyarrow",
    "pyspark",
    "pandas",
    "numpy",
    "uvloop",
    "argon2",
    "jetbus.daemon",
    "jetbus.bus",
    "jetbus.journal.reader",
]
RARE = ["pathlib", "tempfile", "subprocess", "csv", "difflib", "tomllib", "getpass", "ssl", "http", "jetbus.journal"]
"""What only few command lines need."""
LOOPS = ["asyncio", "websockets", "jetbus.peer.aio", "jetbus.peer.blocking"]

PROGRAM = """
import sys
from jetbus.cli.main import run
code = run(sys.argv[2:])
assert code == 0, code
print(sorted(name for name in sys.argv[1].split(",") if name in sys.modules))
"""

COMMANDS = {
    "get": ["get", "plant/pump/mode"],
    "get, as a table": ["get", "plant/pump/mode", "--output", "table"],
    "set": ["set", "plant/pump/mode", '"manual"'],
    "call": ["call", "plant/pump/add", "1", "2"],
    "ls": ["ls", "plant"],
}


def loaded(jet: Jet, names: list[str], words: list[str]) -> str:
    done = jet.run_command([sys.executable, "-c", PROGRAM, ",".join(names), *words], b"", {})
    assert done.code == 0, done.err
    return done.out.splitlines()[-1]


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_load_little(jet: Jet, case: str) -> None:
    """A command that asks once loads no rich, no Arrow, no daemon, no event loop, and nothing that only others need."""
    assert loaded(jet, [*HEAVY, *LOOPS, *RARE], COMMANDS[case]) == "[]"


def test_help_loads_no_peer(jet: Jet) -> None:
    """The help loads no command at all."""
    assert loaded(jet, [*HEAVY, *LOOPS, *RARE, "jetbus.cli.commands.get", "jetbus.peer.simple"], ["--help"]) == "[]"
