"""The names that users of jetpeer's tools know, each for the right verb.

They work as programs of their own (the entry points below, or links to ``jet``) and as ``jet jetget ...``.
"""

from __future__ import annotations

from typing import NoReturn

ALIASES = {
    "jetcat": "watch",
    "jetget": "get",
    "jetset": "set",
    "jetexec": "call",
    "jetinfo": "version",
    "jetstate": "add",
    "jetmethod": "method",
}


def _run(name: str) -> NoReturn:
    from jetbus.cli.main import main

    main(program=name)


def jetcat() -> NoReturn:
    """``jet watch``."""
    _run("jetcat")


def jetget() -> NoReturn:
    """``jet get``."""
    _run("jetget")


def jetset() -> NoReturn:
    """``jet set``."""
    _run("jetset")


def jetexec() -> NoReturn:
    """``jet call``."""
    _run("jetexec")


def jetinfo() -> NoReturn:
    """``jet version``."""
    _run("jetinfo")


def jetstate() -> NoReturn:
    """``jet add``."""
    _run("jetstate")


def jetmethod() -> NoReturn:
    """``jet method``."""
    _run("jetmethod")
