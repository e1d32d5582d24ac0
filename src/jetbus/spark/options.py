"""The options of format ``jet``: their names, their values, and the errors about wrong ones.

Spark gives options as text and knows no case. Everything is checked here, once, in the driver, before a job starts.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetbus.errors import JetError
from jetbus.journal.instants import read_instant
from jetbus.journal.journal_errors import BadInstant
from jetbus.peer.address import DaemonAddress, read_urls
from jetbus.rules import PATH_TESTS, Rule, parse_rule, read_rule
from jetbus.spark.spark_errors import BadOption

__all__ = ["OPTIONS", "DaemonAddress", "Options", "Place", "places_now", "read_options"]

PARTITION_EVENTS = 1_000_000
"""To start a task costs as much as to read some 100,000 events."""

_RULE_WORDS = (*PATH_TESTS, "caseInsensitive", "value", "valueField")

OPTIONS: dict[str, str] = {
    "path": "directory of a journal, a glob, or several as .load([...])",
    "url": "address of a live daemon, such as jet://host:11122; several as JSON list",
    "user": "who to log in as at the daemon",
    "password": "the password of that user",
    "rule": 'which events, as rule text: "plant/** value>7"',
    **{word: f"which events: the fetch rule's word {word}" for word in _RULE_WORDS},
    "since": "events from this instant on: 2026-03-01T12:00:00Z or -2h",
    "until": "events before this instant",
    "asOf": "the tree at this instant instead of events; now: also of a daemon without a journal",
    "start": "where to begin: earliest, latest, a seq, an instant, or JSON with a seq per bus",
    "maxEventsPerBatch": "events of one batch of a stream, at the most",
    "eventsPerPartition": f"events that one task reads, {PARTITION_EVENTS} by default",
    "clock": "true: rows of event time tell how far time has come on a bus where nothing happens",
    "failOnDataLoss": "false: go on where events that are still to be read were dropped",
    "timeoutS": "how long a set request may take, in seconds",
    "onFailure": "what failed set requests do: fail (after all were tried) or ignore",
}
"""Every option and its values."""

_NAMES = {name.lower(): name for name in OPTIONS}
_SPARKS_OWN = ("paths", "header", "mergeschema", "checkpointlocation", "batchid")
"""Options that Spark itself puts among ours."""


Place = Path | DaemonAddress
"""Location of a journal: a folder of this machine, or a live daemon."""


@dataclass(frozen=True)
class Options:
    """Options of one read or write."""

    places: tuple[Place, ...] = ()
    globs: tuple[str, ...] = ()
    rule: Rule | None = None
    since_us: int | None = None
    until_us: int | None = None
    as_of: str | None = None
    start: str = "earliest"
    batch_events_max: int | None = None
    partition_events: int = PARTITION_EVENTS
    clock: bool = False
    fail_on_data_loss: bool = True
    timeout_s: float = 10.0
    ignore_failures: bool = False

    events_only: str | None = None
    """The option that only makes sense for events, if one was given."""

    @property
    def is_tree(self) -> bool:
        """True if a tree is asked for, and not events."""
        return self.as_of is not None

    @property
    def daemons(self) -> tuple[DaemonAddress, ...]:
        """The places that are live daemons."""
        return tuple(place for place in self.places if isinstance(place, DaemonAddress))


def read_options(given: Mapping[str, str]) -> Options:
    """Read the options of format ``jet``; raise ``BadOption`` for a wrong one."""
    words = _known(given)
    globs = _paths(given)
    if bool(globs) == ("url" in words):
        raise BadOption(
            "path", "give either a journal, .load(directory), or a live daemon, .option('url', 'jet://host')"
        )
    return Options(
        places=(*(folder for text in globs for folder in _directories(text)), *_daemons(words)),
        globs=tuple(globs),
        rule=_rule(words),
        since_us=_instant(words, "since"),
        until_us=_instant(words, "until"),
        as_of=_as_of(words),
        start=_start(words),
        batch_events_max=_count(words, "maxEventsPerBatch"),
        partition_events=_count(words, "eventsPerPartition") or PARTITION_EVENTS,
        clock=_flag(words, "clock", False),
        fail_on_data_loss=_flag(words, "failOnDataLoss", True),
        timeout_s=_seconds(words, "timeoutS", 10.0),
        ignore_failures=_choice(words, "onFailure", ("fail", "ignore")) == "ignore",
        events_only=next(_events_only(words), None),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    words = {}
    for key, text in given.items():
        name = _NAMES.get(key.lower())
        if name is not None:
            words[name] = text
        elif key.lower() not in _SPARKS_OWN:
            raise BadOption(key, f"there is none of that name; there are {', '.join(OPTIONS)}")
    return words


# -- where


def _paths(given: Mapping[str, str]) -> list[str]:
    lowered = {key.lower(): text for key, text in given.items()}
    if several := lowered.get("paths"):
        return [_local(str(path)) for path in json.loads(several)]
    return [_local(lowered["path"])] if lowered.get("path") else []


def _local(path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return path
    if scheme != "file":
        raise BadOption("path", f"{path!r} is not on a file system of this machine; mount it, or use the option url")
    return "/" + rest.lstrip("/")


def _directories(text: str) -> list[Path]:
    # A folder may have the characters of a glob in its name.
    if not glob.has_magic(text) or Path(text).is_dir():
        return [Path(text)]
    found = [Path(path) for path in sorted(glob.glob(text)) if Path(path).is_dir()]  # noqa: PTH207 - may be absolute
    if not found:
        raise BadOption("path", f"no directory matches {text!r}")
    return found


def _daemons(words: Mapping[str, str]) -> list[DaemonAddress]:
    text = words.get("url", "").strip()
    urls = _json("url", text, list, '["jet://a", "jet://b"]') if text.startswith("[") else [text] if text else []
    if "url" in words and not urls:
        raise BadOption("url", "it is empty; give the address of a daemon, such as jet://host:11122")
    for url in urls:
        try:
            read_urls(url if isinstance(url, str) else "")
        except ValueError as problem:
            raise BadOption("url", str(problem)) from problem
    if "password" in words and "user" not in words:
        raise BadOption("user", "a password is given without a user; give the option user as well")
    return [DaemonAddress(str(url), words.get("user"), words.get("password")) for url in urls]


def places_now(options: Options) -> tuple[Place, ...]:
    """Return the places that the options name now: a glob may match more than it did."""
    return (*(folder for text in options.globs for folder in _directories(text)), *options.daemons)


# -- which events


def _rule(words: Mapping[str, str]) -> Rule | None:
    path: dict[str, Any] = {}
    params: dict[str, Any] = {"path": path}
    for name, text in words.items():
        if name in PATH_TESTS:
            path[name] = _json(name, text, list) if PATH_TESTS[name].takes_list else text
        elif name == "caseInsensitive":
            path[name] = _flag(words, name, False)
        elif name in ("value", "valueField"):
            params[name] = _json(name, text, dict)
    if not path and len(params) == 1 and "rule" not in words:
        return None
    try:
        wanted = read_rule(params)
    except JetError as problem:
        raise BadOption(", ".join([*path, *params][:1]) or "rule", str(problem)) from problem
    if "rule" not in words:
        return wanted
    try:
        return parse_rule(words["rule"]).both(wanted)
    except JetError as problem:
        raise BadOption("rule", str(problem)) from problem


_EXAMPLES: dict[type, str] = {list: '["a", "b"]', dict: '{"greaterThan": 7}'}


def _json(name: str, text: str, kind: type, example: str | None = None) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise BadOption(name, f"{text!r} is not understood; write it as JSON such as {example or _EXAMPLES[kind]}")
    return value


# -- small things


def _instant(words: Mapping[str, str], name: str) -> int | None:
    if name not in words:
        return None
    try:
        return read_instant(words[name])
    except BadInstant as problem:
        raise BadOption(name, str(problem)) from problem


def _as_of(words: Mapping[str, str]) -> str | None:
    if "asOf" not in words:
        return None
    for other in _events_only(words):
        raise BadOption("asOf", f"cannot be combined with {other}")
    # Only checked: ``now`` and ages are meant as of the read, not as of here.
    _instant(words, "asOf")
    return words["asOf"]


def _events_only(words: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that only make sense for events."""
    yield from (name for name in ("since", "until", "start") if name in words)
    if _flag(words, "clock", False):
        yield "clock"


def _start(words: Mapping[str, str]) -> str:
    text = words.get("start", "earliest").strip()
    if text in ("earliest", "latest") or text.isdigit():
        return text
    if text.startswith("{"):
        seqs = _json("start", text, dict)
        if not all(isinstance(seq, int) and seq >= 0 for seq in seqs.values()):
            raise BadOption("start", f'{text!r} has other things than seqs; write it as {{"bus": 123}}')
        return text
    try:
        read_instant(text)
    except BadInstant:
        raise BadOption(
            "start", f"{text!r} is not understood; write earliest, latest, a seq, an instant or JSON with a seq per bus"
        ) from None
    return text


def _count(words: Mapping[str, str], name: str) -> int | None:
    text = words.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise BadOption(name, f"{text!r} is not a number of events; write a whole number from 1 on")
    return int(text)


def _seconds(words: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(words.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadOption(name, f"{words[name]!r} is not a number of seconds")
    return seconds


def _flag(words: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(words, name, ("true", "false"), "true" if default else "false") == "true"


def _choice(words: Mapping[str, str], name: str, choices: tuple[str, ...], default: str | None = None) -> str:
    text = words.get(name, default or choices[0]).lower()
    if text not in choices:
        raise BadOption(name, f"{words[name]!r} is not one of {', '.join(choices)}")
    return text
