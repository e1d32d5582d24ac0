"""Entry points of the commands ``jet`` and ``jetd`` and of jetpeer's tools.

``pip install jetbus`` is enough for peers, and installs the commands as well: a package cannot leave them out. What the
commands import comes with the extras ``cli`` and ``daemon``. So nothing is imported here before a command is used, and
a command without its packages names them in one line.
"""

from __future__ import annotations

import importlib
import sys

EXTRAS = {"click": "cli", "rich": "cli", "argon2": "daemon"}
"""Packages that the commands import, each with the extra that installs it."""
USAGE_ERROR = 2
"""Exit code of a command that cannot start."""


def jet() -> None:
    """Run the command ``jet``, or the tool of jetpeer that the program is named after."""
    _run("jet", "jetbus.cli.main")


def jetd() -> None:
    """Run the command ``jetd``."""
    _run("jetd", "jetbus.daemon.main")


def describe_missing(problem: ModuleNotFoundError) -> str | None:
    """Return the words to install the extra of a package; None if it belongs to no extra."""
    extra = EXTRAS.get(problem.name or "")
    return extra and f"{problem.name} is missing; install it with: pip install 'jetbus[{extra}]'"


def _run(command: str, module: str) -> None:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as problem:
        text = describe_missing(problem)
        if text is None:
            raise
        print(f"{command}: {text}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    main()
