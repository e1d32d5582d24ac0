"""The account: bytes that peers make the daemon keep, and fetches that others pay for with their time.

Everything that stays in memory because of a peer is charged to that peer while it stays: elements with their paths,
values, descriptions and access lists, fetches with their ids and rules, requests that wait for an owner, messages that
wait to be handled, and unread bytes. A charge counts at three levels, each with a limit of its own::

    peer #7 --+
    peer #8 --+-- address 10.0.0.5 --+
    peer #9 ----- address uid 1000 --+-- all

A request that would exceed a limit is refused with an error that names the limit. Bytes that are on their way already
(unread or not yet handled) are counted without a refusal, by ``note``; outboxes and inbound bytes have limits of their
own.

Sizes are estimates of the memory that CPython takes, rather too high than too low. A value is charged with some room to
spare, so that the usual change, with a value about as long as the one before, is not charged at all.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from jetbus.bus.descriptions import UNDESCRIBED, Description
from jetbus.bus.limits import Limits
from jetbus.errors import LimitReached
from jetbus.wire.lane import AccountCore, LevelCore

if TYPE_CHECKING:
    from jetbus.bus.access import Access
    from jetbus.bus.tree import Element
    from jetbus.rules import Rule

log = logging.getLogger("jetbus.bus")

ELEMENT_BYTES = 600
"""An element with a short path, a short value and its places in the tree."""
VALUE_ROOM = 64
"""Length of a value that is part of ``ELEMENT_BYTES``."""
ROOM_KEPT = 1024
"""Room for a value that is not given back when shorter values follow."""
ROOM_MAX = (1 << 32) - 1
"""Most room that is charged: no message is longer."""
NODES_SHARED = 8
"""Nodes above an element that are not charged to it, because others are below them as well."""
NODE_BYTES = 400
"""A node of the tree, with its segment."""
FETCH_BYTES = 3_000
TEST_BYTES = 1_000
"""A test of a rule, composed."""
ITEM_BYTES = 200
"""A text in a list or a member of an object, beside its characters."""
ROUTE_BYTES = 500
FREE_BYTES = 64 * 1024
"""Bytes that a peer may keep also while all together keep too much."""


class Level(LevelCore):
    """One level of the account: a peer, an address or all."""

    __slots__ = ("fetches", "peers", "tests")

    def __init__(self) -> None:
        self.kept_bytes = 0
        self.fetches = 0
        self.tests = 0
        """Tests in the rules of the fetches."""
        self.peers = 0


class Account(AccountCore):
    """The account of one peer."""

    __slots__ = ("_book", "_warned", "address_name", "label")

    def __init__(self, book: Book, address_name: str, address: Level) -> None:
        self._book = book
        self._warned = False
        self.label = ""
        self.peer = Level()
        self.address_name, self.address = address_name, address
        self.all = book.all

    @classmethod
    def alone(cls) -> Account:
        """Return the account of a session without an address, such as that of the daemon itself."""
        return Book(Limits(), Counter()).open("")

    def charge(self, more_bytes: int) -> None:
        """Count bytes that are kept from now on, or fewer if negative; refuse bytes that exceed a limit."""
        peer, address, everybody = self.peer, self.address, self.all
        # Read once: members of C are slower than a local variable.
        of_peer, of_address = peer.kept_bytes + more_bytes, address.kept_bytes + more_bytes
        of_all = everybody.kept_bytes + more_bytes
        if more_bytes > 0:
            limits = self._book.limits
            if of_peer > limits.kept_peer_bytes_max:
                raise self._refuse("kept_peer_bytes_max", "this peer makes the daemon keep too much")
            if of_address > limits.kept_address_bytes_max:
                raise self._refuse("kept_address_bytes_max", "the peers of this address make the daemon keep too much")
            # Others must not be able to keep a peer from a few short requests.
            if of_all > limits.kept_bytes_max and of_peer > FREE_BYTES:
                raise self._refuse("kept_bytes_max", "all peers together make the daemon keep too much")
        peer.kept_bytes, address.kept_bytes, everybody.kept_bytes = of_peer, of_address, of_all

    def note(self, more_bytes: int) -> None:
        """Count bytes that cannot be refused any more."""
        self.peer.kept_bytes += more_bytes
        self.address.kept_bytes += more_bytes
        self.all.kept_bytes += more_bytes

    @property
    def limits(self) -> Limits:
        """The limits as they are now."""
        return self._book.limits

    def refuse(self, limit: str, what: str) -> LimitReached:
        """Count a crossed limit and return its error."""
        return self._book.refuse(limit, what)

    @property
    def overdrawn(self) -> str:
        """The limit that is exceeded by bytes that could not be refused, of the address or of all; empty for none."""
        limits = self._book.limits
        if self.address.kept_bytes > limits.kept_address_bytes_max:
            return "kept_address_bytes_max"
        return "kept_bytes_max" if self.all.kept_bytes > limits.kept_bytes_max else ""

    def _refuse(self, limit: str, what: str) -> LimitReached:
        advice = "remove states or fetches, send shorter values, or read what was sent"
        error = self._book.refuse(limit, f"{what}; {advice}")
        # A notification is refused without an answer; the log says so, once for each peer.
        if not self._warned:
            self._warned = True
            log.warning("%s: a request is refused: %s", self.label, error)
        return error

    # -- fetches

    def check_fetch(self, fetch_id: bytes, rule: Rule) -> None:
        """Refuse a fetch that is one too many, or too large, or has too many tests in its rule."""
        limits, tests, book = self._book.limits, rule.tests, self._book
        for level, suffix, whose in (
            (self.peer, "", "one peer"),
            (self.address, "_address", "one address"),
            (self.all, "_total", "all peers"),
        ):
            if level.fetches >= getattr(limits, f"fetches{suffix}_max"):
                raise book.refuse(f"fetches{suffix}_max", f"too many fetches of {whose}; unfetch those not needed")
            if level.tests + tests > getattr(limits, f"rule_tests{suffix}_max"):
                raise book.refuse(f"rule_tests{suffix}_max", f"too many tests in the rules of {whose}")

        self.charge(size := measure_fetch(fetch_id, rule))
        self.note(-size)

    def add_fetch(self, fetch_id: bytes, rule: Rule) -> None:
        """Count a fetch."""
        self.charge(measure_fetch(fetch_id, rule))
        for level in (self.peer, self.address, self.all):
            level.fetches += 1
            level.tests += rule.tests

    def remove_fetch(self, fetch_id: bytes, rule: Rule) -> None:
        """Count a fetch no longer."""
        self.note(-measure_fetch(fetch_id, rule))
        for level in (self.peer, self.address, self.all):
            level.fetches -= 1
            level.tests -= rule.tests


class Book:
    """The accounts of all peers."""

    def __init__(self, limits: Limits, limit_hits: Counter[str]) -> None:
        self.limits = limits
        self._limit_hits = limit_hits
        self.all = Level()
        self.addresses: dict[str, Level] = {}

    def open(self, address: str) -> Account:
        """Open the account of a peer that has connected from an address."""
        level = self.addresses.setdefault(address, Level())
        level.peers += 1
        return Account(self, address, level)

    def close(self, account: Account) -> None:
        """Close the account of a peer that is gone, and that of its address with the last peer."""
        account.address.peers -= 1
        if not account.address.peers:
            self.addresses.pop(account.address_name, None)

    def refuse(self, limit: str, what: str) -> LimitReached:
        """Count a crossed limit and return its error."""
        self._limit_hits[limit] += 1
        return LimitReached(limit, getattr(self.limits, limit), what)


# -- sizes


def measure_element(element: Element) -> int:
    """Return the bytes of an element."""
    size = ELEMENT_BYTES - VALUE_ROOM + element.room + 3 * len(element.path_json)
    # Peers of 2012 may choose either separator, so both count.
    depth = element.path.count("/") + element.path.count(".")
    if depth > NODES_SHARED:
        size += NODE_BYTES * (depth - NODES_SHARED)
    if element.description is not UNDESCRIBED:
        size += measure_description(element.description)
    return size if element.access is None else size + measure_access(element.access)


def make_room(size: int) -> int:
    """Return the room for a value of this length: enough for the next one, which will be about as long."""
    return min(max(VALUE_ROOM, size + size // 8), ROOM_MAX)


def measure_description(description: Description) -> int:
    """Return the bytes of a description."""
    size = 0
    if description.schema is not None:
        # A schema that values are checked against is kept in a form of its own, too.
        size += len(description.schema) * (1 if description.limits is None else 10)
    return size + sum(ITEM_BYTES + len(name) + len(member) for name, member in description.others.items())


def measure_access(access: Access) -> int:
    """Return the bytes of access lists."""
    lists = (access.fetch_groups, access.set_groups, access.call_groups)
    return sum(ITEM_BYTES + 2 * len(group) for groups in lists if groups is not None for group in groups)


def measure_fetch(fetch_id: bytes, rule: Rule) -> int:
    """Return the bytes of a fetch with its rule."""
    # The id is in the key and the head of its audience, and in the list of its peer.
    return FETCH_BYTES + 4 * len(fetch_id) + rule.kept_bytes
