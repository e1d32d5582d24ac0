"""Methods of the daemon for those who look after a bus: who owns what, and closing a connection.

Where there are users, closing connections and seeing access groups take an administrator. Nobody is told of elements
that are hidden from him.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetbus.errors import Invalid, InvalidRule, NotAllowed, WrongType
from jetbus.paths import DAEMON_NODE
from jetbus.rules import EVERYTHING, Rule, parse_rule, read_rule
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.session import Session
    from jetbus.daemon.daemon import Daemon

log = logging.getLogger("jetbus.daemon")

KICK = f"{DAEMON_NODE}/kick"
OWNERS = f"{DAEMON_NODE}/owners"


class Control:
    """The methods, added to the bus of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        daemon.bus.own.serve(KICK, self._kick)
        daemon.bus.own.serve(OWNERS, self._owners)

    def _is_admin(self, session: Session) -> bool:
        return self._daemon.bus.users is None or (session.auth is not None and session.auth.admin)

    def _kick(self, session: Session, args: Any) -> Callable[[], bytes]:
        """Close the connection of a peer, by its number."""
        if not self._is_admin(session):
            raise NotAllowed(KICK, f"{KICK} takes an administrator; authenticate as one")
        number = _argument(args, "peer")
        found = [peer for peer in self._daemon.connections if peer.session and peer.session.number == number]
        if not found:
            raise Invalid("peer", f"there is no peer {number!r}; {DAEMON_NODE}/peers/ has their numbers")
        log.warning("%s is closed, as %s asked for", found[0].outbox.label, session.label)
        found[0].outbox.flush()
        found[0].transport.abort()
        return lambda: binary.json_body(b"true")

    def _owners(self, session: Session, args: Any) -> Callable[[], bytes]:
        """Who owns what a rule matches, and which groups it asks for."""
        rule, admin, told = read_any_rule(_argument(args, "rule")), self._is_admin(session), []
        for element in self._daemon.bus.tree.matching(rule):
            if element.shown_to(session.auth):
                about: dict[str, Any] = {"path": element.path, "owner": element.owner.label}
                if admin and element.access is not None:
                    about["access"] = element.access.wire()
                told.append(about)
        return lambda: binary.json_body(jsonrpc.encode(told))


def _argument(args: Any, name: str) -> Any:
    """The one argument of a method, by name or by position."""
    if isinstance(args, dict):
        return args.get(name)
    return args[0] if isinstance(args, list) and args else None


def read_any_rule(found: Any) -> Rule:
    """A rule as text or as the parameters of a fetch; none is everything."""
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
