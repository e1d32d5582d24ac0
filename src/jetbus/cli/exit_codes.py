"""Failures of commands: an exit code for scripts and one sentence for people.

The sentence states the cause and the next step. A traceback is printed only with ``--debug``.
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
from jetbus.paths import find_similar as find_similar
from jetbus.paths import find_similar_path as find_similar_path


class Code(IntEnum):
    """Exit codes of ``jet``; the page of the command lists them with these meanings."""

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
        # The text is an attribute and not a part of the value, so that a code remains a number for sys.exit.
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code


class Failure(Exception):
    """Error that ends a command with a message and an exit code."""

    def __init__(self, text: str, code: Code = Code.REFUSED) -> None:
        super().__init__(text)
        self.code = code


def usage_error(text: str) -> Failure:
    """Return the error for a wrong command line."""
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
    # Fits every error, so it has to be the last row.
    (JetError, Code.REFUSED),
)
"""The first row that fits an error has its exit code."""

_NEXT_STEPS: tuple[tuple[type[JetError], str], ...] = (
    (NotAllowed, "; `--user NAME` logs in"),
    (LoginRefused, "; check --user and the password, or correct the context"),
    (NotFound, "; `jet ls` lists what there is"),
    (TimedOut, "; try again, or give the owner more time with --timeout"),
    (TooSlow, "; omit --every to receive only the newest values"),
    (UnknownService, "; a newer version, or jetd, may have it"),
)
"""Next step for errors with a text that does not name one."""


def get_reason(problem: JetError) -> str | None:
    """Return the reason code in the data of an error, or None."""
    found = problem.data.get("reason") if isinstance(problem.data, dict) else None
    return found if isinstance(found, str) else None


def get_exit_code(problem: JetError) -> Code:
    """Return the exit code for an error of the bus."""
    return next(code for kind, code in _CODES if isinstance(problem, kind))


def describe_error(problem: JetError) -> str:
    """Describe an error of the bus in one sentence, with the next step."""
    reason = get_reason(problem) if isinstance(problem, UnknownService) else None  # cjet wraps the name
    # Owners choose their texts, line breaks included, but a message is one line.
    text = " ".join(str(problem if reason is None else UnknownService(reason)).split())
    if isinstance(problem, LoginRefused):
        text = f"login refused: {text}"
    if isinstance(problem, TimedOut) and problem.data is None:
        return text  # the daemon itself timed out, so --timeout would not help
    return text + next((step for kind, step in _NEXT_STEPS if isinstance(problem, kind)), "")


def path_not_found(path: str, paths: Iterable[str]) -> Failure:
    """Return the error for an unknown path, with the most similar path as a suggestion."""
    near = find_similar_path(path, paths)
    hint = f"did you mean {escape(near)}?" if near else "`jet ls` lists what there is"
    return Failure(f"there is no {escape(path)} on the bus; {hint}", Code.NOT_FOUND)


def escape(text: str) -> str:
    """Escape control characters, so that text from the bus cannot send commands to the terminal."""
    # Characters that change the direction of text are not printable either.
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_message(text: str, program: str = "jet") -> None:
    """Print a message to stderr, after the name of the program."""
    red, plain = ("\x1b[31m", "\x1b[0m") if supports_colour(sys.stderr) else ("", "")
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(f"{red}{program}:{plain} {escape(text)}", file=sys.stderr, flush=True)


def supports_colour(stream: object) -> bool:
    """Return True for a terminal with colours, unless NO_COLOR is set."""
    is_terminal = getattr(stream, "isatty", lambda: False)
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(is_terminal())
