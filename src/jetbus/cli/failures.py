"""How a command fails: with an exit code that scripts can tell apart and one sentence that people can act on.

A sentence has the cause and the next step. There is never a traceback, except with ``--debug``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from enum import IntEnum

from jetbus.errors import (
    AlreadyFetching,
    InvalidRule,
    JetError,
    LoginRefused,
    MessageTooLong,
    NotAllowed,
    NotConnected,
    NotFound,
    TimedOut,
    TooSlow,
    UnknownService,
    UserRefused,
)


class Code(IntEnum):
    """The exit codes; the reference in docs/cli.md lists them in these words."""

    OK = 0, "done"
    REFUSED = 1, "refused by the owner or the daemon"
    USAGE = 2, "the command line is wrong"
    NO_CONNECTION = 3, "cannot connect"
    NOT_ALLOWED = 4, "not allowed, or the login is refused"
    NOT_FOUND = 5, "not found"
    TIMED_OUT = 6, "timed out"
    NOT_MET = 7, "the condition of --until, --count or a check is not met"
    INTERRUPTED = 130, "interrupted by Ctrl-C"

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Code:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code


class Failure(Exception):
    """What a command says when it cannot do what was asked."""

    def __init__(self, text: str, code: Code = Code.REFUSED) -> None:
        super().__init__(text)
        self.code = code


def usage(text: str) -> Failure:
    """The command line is wrong."""
    return Failure(text, Code.USAGE)


_CODES: tuple[tuple[type[JetError], Code], ...] = (
    (InvalidRule, Code.USAGE),
    (MessageTooLong, Code.REFUSED),
    (NotConnected, Code.NO_CONNECTION),
    (LoginRefused, Code.NOT_ALLOWED),
    (NotAllowed, Code.NOT_ALLOWED),
    (UserRefused, Code.NOT_ALLOWED),
    (AlreadyFetching, Code.NOT_ALLOWED),
    (NotFound, Code.NOT_FOUND),
    (TimedOut, Code.TIMED_OUT),
    (JetError, Code.REFUSED),
)
"""The first row that fits an error has its exit code."""

_NEXT_STEPS: tuple[tuple[type[JetError], str], ...] = (
    (NotAllowed, "; `--user NAME` logs in"),
    (LoginRefused, "; give another user with --user, or correct the context"),
    (NotFound, "; `jet ls` shows what is there"),
    (TimedOut, "; ask again, or give the owner more time with --timeout"),
    (TooSlow, "; leave out --every to be told only the newest values"),
    (UnknownService, "; a newer one, or a jetd, may have it"),
)
"""What to do next, where the error itself does not say it."""


def reason_of(problem: JetError) -> str | None:
    """The one word by which a daemon tells why it refuses, where it does."""
    found = problem.data.get("reason") if isinstance(problem.data, dict) else None
    return found if isinstance(found, str) else None


def code_of(problem: JetError) -> Code:
    """The exit code of an error of the bus."""
    return next(code for kind, code in _CODES if isinstance(problem, kind))


def sentence(problem: JetError) -> str:
    """An error of the bus in one sentence with a next step."""
    reason = reason_of(problem) if isinstance(problem, UnknownService) else None  # cjet wraps the name
    text = " ".join(str(problem if reason is None else UnknownService(reason)).split())
    if isinstance(problem, LoginRefused):
        text = f"the login is refused: {text}"
    if isinstance(problem, TimedOut) and problem.data is None:
        return text  # it is the daemon, and more time for an owner would not help
    return text + next((step for kind, step in _NEXT_STEPS if isinstance(problem, kind)), "")


NEAR_PATHS_MAX = 5000
"""Comparing with more paths than this would take seconds."""


def not_found(path: str, paths: Iterable[str]) -> Failure:
    """A path that is not there, and the one that was probably meant."""
    near = near_path(path, paths)
    hint = f"did you mean {printable(near)}?" if near else "`jet ls` shows what is there"
    return Failure(f"there is no {printable(path)} on the bus; {hint}", Code.NOT_FOUND)


def near_path(path: str, paths: Iterable[str]) -> str | None:
    """The path of the bus that looks most like this one."""
    known = list(paths)
    if len(known) > NEAR_PATHS_MAX:
        first, last = path.split("/")[0], path.split("/")[-1]
        known = [one for one in known if one.startswith(first) or one.endswith(last)][:NEAR_PATHS_MAX]
    found = near(path, known, 0.7)
    return found or next((one for one in known if one.lower() == path.lower()), None)


def near(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word that looks most like this one."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1, likeness)), None)


def printable(text: str) -> str:
    """Text that may have come from anybody, without what a terminal would take as a command."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def complain(text: str, program: str = "jet") -> None:
    """Say something on stderr."""
    red, plain = ("\x1b[31m", "\x1b[0m") if colourful(sys.stderr) else ("", "")
    with contextlib.suppress(OSError, ValueError):  # perhaps nobody listens
        print(f"{red}{program}:{plain} {printable(text)}", file=sys.stderr, flush=True)


def colourful(stream: object) -> bool:
    """Whether colour is wanted there: only on a terminal, and not if NO_COLOR says so."""
    is_terminal = getattr(stream, "isatty", lambda: False)
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(is_terminal())
