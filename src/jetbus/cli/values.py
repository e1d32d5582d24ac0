"""What people type on the command line, values and durations; and values as they are shown.

Values are JSON. A bare word is text only where ``--string`` says so, so that ``1`` and ``"1"`` stay two things.
"""

from __future__ import annotations

import json
import re
from typing import Any

from jetbus.cli.failures import printable, usage
from jetbus.wire import jsonrpc


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def read_value(text: str, *, string: bool = False) -> Any:
    """A value from the command line.

    >>> read_value('{"rpm": 7}'), read_value("on", string=True)
    ({'rpm': 7}, 'on')
    """
    if string:
        return text
    try:
        value = json.loads(text, parse_constant=_no_constant)
        jsonrpc.encode(value)  # more than 64 bits are too much for a number
    except (ValueError, OverflowError, RecursionError, UnicodeError):
        raise usage(_not_json(text)) from None
    return value


def _not_json(text: str) -> str:
    short = text if len(text) <= 40 else text[:39] + "…"
    if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", text):
        return f"there is no option {short}; --help lists all of them"
    if re.fullmatch(r"[^\s\"'{}\[\]]+", text):
        return f"{short} is not JSON; write '\"{short}\"' or give --string for text"
    return f"{short} is not JSON; text is written '\"text\"', or give --string"


def read_duration(text: str) -> float:
    """A duration in seconds: ``250ms``, ``2h``, ``7d``, ``1h30m``.

    >>> read_duration("250ms"), read_duration("1h30m")
    (0.25, 5400.0)
    """
    from jetbus.journal import BadInstant, instants  # most commands are given none

    try:
        return instants.read_duration(text)
    except BadInstant:
        raise usage(f"{text!r} is no duration; write a number and a unit, such as 250ms, 10s, 2h or 7d") from None


def shown(value: Any) -> str:
    """A value as compact JSON."""
    try:
        return jsonrpc.encode(value).decode()
    except (ValueError, TypeError, OverflowError):
        return json.dumps(value, ensure_ascii=True)


def plain(value: Any) -> Any:
    """A value as JSON can tell it; bytes become what stands for them on the bus."""
    if not isinstance(value, bytes):
        return value
    from base64 import b64encode

    return {"mime": getattr(value, "mime", "application/octet-stream"), "base64": b64encode(value).decode()}


def bare(value: Any) -> str:
    """A value as scripts want it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else shown(value)


def on_one_line(value: Any) -> str:
    """A value as a cell of a table."""
    return printable(shown(value))
