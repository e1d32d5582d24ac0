"""Methods of the daemon for administrators of a bus: owners and fetches of each peer, and closing a connection.

Where there are users, closing connections and seeing access groups take an administrator. Elements that are
hidden from a peer are left out of its answers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetbus.errors import Invalid, InvalidRule, NotAllowed, WrongType
from jetbus.json_types import Json, JsonObject
from jetbus.paths import DAEMON_NODE, is_daemons
from jetbus.rules import EVERYTHING, Rule, parse_rule, read_rule
from jetbus.rules.decoding import write_rule
from jetbus.rules.work import meter
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.session import Session
    from jetbus.daemon.connection import Connection
    from jetbus.daemon.daemon import Daemon

log = logging.getLogger("jetbus.daemon")

KICK = f"{DAEMON_NODE}/kick"
OWNERS = f"{DAEMON_NODE}/owners"
HOLDINGS = f"{DAEMON_NODE}/holdings"
HOLDINGS_MAX = 1_000
"""Paths and fetches of a peer that one answer lists."""


class AdminMethods:
    """The methods, added to the bus of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        daemon.bus.builtin.add_method(KICK, self._kick)
        daemon.bus.builtin.add_method(OWNERS, self._owners)
        daemon.bus.builtin.add_method(HOLDINGS, self._holdings)

    def _is_admin(self, session: Session) -> bool:
        return self._daemon.bus.permissions.users is None or (session.auth is not None and session.auth.admin)

    def _find_peer(self, args: Json) -> Connection:
        number = _argument(args, "peer")
        found = [peer for peer in self._daemon.connections if peer.session and peer.session.number == number]
        if not found:
            raise Invalid("peer", f"there is no peer {number!r}; {DAEMON_NODE}/peers/ has their numbers")
        return found[0]

    def _kick(self, session: Session, args: Json) -> Callable[[], bytes]:
        """Close the connection of a peer, by its number."""
        if not self._is_admin(session):
            raise NotAllowed(KICK, f"{KICK} takes an administrator; authenticate as one")
        found = self._find_peer(args)
        log.warning("%s is closed at the request of %s", found.outbox.label, session.label)
        found.outbox.flush()
        found.outbox.abort()
        return lambda: binary.encode_json_body(b"true")

    def _holdings(self, session: Session, args: Json) -> Callable[[], bytes]:
        """Return the elements that a peer owns and the caller may see, and the rules of its fetches."""
        if not self._is_admin(session):
            raise NotAllowed(HOLDINGS, f"{HOLDINGS} takes an administrator; authenticate as one")
        held = self._find_peer(args).session
        limit = args.get("limit") if isinstance(args, dict) else None
        count = min(limit, HOLDINGS_MAX) if isinstance(limit, int) and limit > 0 else HOLDINGS_MAX
        shown = (path for path, element in held.elements.items() if element.shown_to(session.auth)) if held else ()
        owns = list(itertools.islice(shown, count))
        rules = [write_rule(fetch.rule)[0] for fetch in itertools.islice(held.fetches.values(), count)] if held else []
        total = len(held.elements) if held else 0
        answer = jsonrpc.encode({"owns": owns, "total": total, "fetches": rules})
        return lambda: binary.encode_json_body(answer)

    def _owners(self, session: Session, args: Json) -> Callable[[], bytes]:
        """Return owner and groups of the elements that match a rule; a thread searches, beside the bus."""
        rule, admin, auth = read_any_rule(_argument(args, "rule")), self._is_admin(session), session.auth
        elements, allowed = self._daemon.bus.tree.elements, self._daemon.config.rule_work_max

        def find() -> bytes:
            found = []
            with meter.ceiling(allowed, "rule_work_max"):
                for element in list(elements.values()):  # a copy, since the bus goes on meanwhile
                    meter.spend(1)
                    if not rule.matches_path(element.path) or not element.shown_to(auth):
                        continue
                    if is_daemons(element.path) and not rule.sees_daemon:
                        continue
                    about: JsonObject = {"path": element.path, "owner": element.owner.label}
                    if admin and element.access is not None:
                        about["access"] = element.access.wire()
                        if element.access.rights is not None:
                            about["ruled"] = True
                    found.append(about)
            return binary.encode_json_body(jsonrpc.encode(found))

        return find


def _argument(args: Json, name: str) -> Json:
    """Return the one argument of a method, by name or by position."""
    if isinstance(args, dict):
        return args.get(name)
    return args[0] if isinstance(args, list) and args else None


def read_any_rule(found: Json) -> Rule:
    """Return a rule given as text or as the parameters of a fetch; None matches everything."""
    if found is None:
        return EVERYTHING
    if isinstance(found, str):
        try:
            return parse_rule(found)
        except ValueError as problem:
            raise InvalidRule(found, str(problem)) from None
    if not isinstance(found, dict):
        raise WrongType("rule")
    return read_rule(found)
