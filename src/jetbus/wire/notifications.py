"""JSON texts of notifications and of the entries of a get.

A notification of a fetch has a *head*, which depends on the fetch id only, and a *tail*, which depends on the event
only. Fetches with different ids therefore share the tail of an event::

    {"method":"f1",   "params":{"path":"a","event":"change","value":7}}
    \\____ head ____/  \\____________________ tail _____________________/

``dialects`` has the tails of single events in each dialect. The texts here are the same in all JSON dialects. Paths and
values come as JSON text and are inserted unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

_FETCH_ONLY = b',"fetchOnly":true'
TAIL_START, TAIL_END = b'"params":{"path":', b"}}"
"""Start and end of the tail of a change, for the bus, which composes this most frequent event itself to save a call."""


class Entry(Protocol):
    """A state or method as an entry shows it. Methods are without a value."""

    @property
    def path_json(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


def encode_head(fetch_id: bytes, version: bytes = b"") -> bytes:
    """Encode the head of all notifications of a fetch; ``version`` is the member ``jsonrpc`` for peers that send it."""
    return b"".join((b"{", version, b'"method":', fetch_id, b","))


def encode_list(texts: Iterable[bytes]) -> bytes:
    """Encode a list of JSON texts."""
    return b"[" + b",".join(texts) + b"]"


# -- additions to tails, which end with the brackets of params and of the message


def add_members(tail: bytes, members: bytes, end: bytes = b"}}") -> bytes:
    """Insert members, each with a comma in front, before the end of a tail."""
    return tail[: -len(end)] + members + end if members else tail


def add_timestamp(tail: bytes, ts: str) -> bytes:
    """Insert the instant of an event, if it is known, into the tail."""
    return tail if not ts else tail[:-2] + b',"ts":"' + ts.encode() + b'"}}'


# -- entries of a get


def encode_entry(entry: Entry, fetch_only: bool, members: bytes = b"") -> bytes:
    """Encode an entry of a get; further members have a comma in front."""
    value = b"" if entry.value is None else b',"value":' + entry.value
    flag = _FETCH_ONLY if fetch_only else b""
    return b'{"path":%b,"event":"add"%b%b%b}' % (entry.path_json, value, flag, members)


def encode_past_entry(entry: Entry, fetch_only: bool, ts: str, members: bytes = b"") -> bytes:
    """Encode an entry of a get with ``asOf``, with the instant of its last event."""
    return encode_entry(entry, fetch_only, members)[:-1] + b',"ts":"' + ts.encode() + b'"}'


# -- sorted fetches


def encode_sorted_entry(position: int, entry: Entry, fetch_only: bool, members: bytes = b"") -> bytes:
    """Encode an entry of a sorted fetch or get, at a position counted from 1."""
    head, tail = encode_sorted_halves(entry, fetch_only, members)
    return b"%b%d%b" % (head, position, tail)


def encode_sorted_halves(entry: Entry, fetch_only: bool, members: bytes = b"") -> tuple[bytes, bytes]:
    """Encode an entry of a sorted get as the parts before and behind its position, which is not known yet."""
    value = b"" if entry.value is None else b',"value":' + entry.value
    flag = _FETCH_ONLY if fetch_only else b""
    return b'{"path":%b%b,"index":' % (entry.path_json, value), b"%b%b}" % (flag, members)


def encode_sorted_list(halves: Iterable[tuple[bytes, bytes]], first: int) -> bytes:
    """Encode entries from their halves, separated by commas, at positions that are counted from ``first``."""
    return b",".join([b"%b%d%b" % (head, at, tail) for at, (head, tail) in enumerate(halves, first)])


PLAIN_SORTED_ENTRY = b'{"path":%b,"value":%b,"index":%d}'
"""Template for path, value and position of a state that can be set; most entries are such states."""


def encode_sorted_changes(entries: Sequence[bytes], count: int) -> bytes:
    """Encode the params of a sorted notification: changed entries, and the number of entries in the range."""
    return b'{"changes":[%b],"n":%d}' % (b",".join(entries), count)


def encode_sorted_tail(changes: bytes) -> bytes:
    """Encode the tail of a sorted notification from its params."""
    return b'"params":' + changes + b"}"


# -- fetches with ``together``


def encode_combined_tail(pieces: Sequence[bytes]) -> bytes:
    """Encode the tail of a notification with several changes: path, value and fetchOnly of each, in one flat list."""
    return b"".join((b'"params":[', b",".join(pieces), b"]}"))
