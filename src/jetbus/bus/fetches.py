"""All fetches of the bus: finding those a new path concerns without testing every rule, and telling them.

Audiences are found by path in a dict where their rule names exact paths, by prefix in a dict per prefix length in
use, and only the rest is tested one by one. An element keeps the audiences that are told of it, so that a change
looks for nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from jetbus.bus.audience import Audience
from jetbus.bus.binaryaudience import BinaryAudience
from jetbus.bus.session import Session
from jetbus.bus.together import TogetherAudience
from jetbus.bus.tree import Element, Tree
from jetbus.paths import is_daemons, nodes_of
from jetbus.rules import Rule
from jetbus.wire.dialects import CLASSIC, CLASSIC_WITH_SCHEMA, Dialect, legacy_node


class Fetches:
    """The audiences of the bus and their members."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._audiences: dict[object, Audience] = {}
        self._exact: dict[str, list[Audience]] = {}
        self._prefixes: dict[int, dict[str, list[Audience]]] = {}
        self._others: list[Audience] = []
        self._node_watchers: list[Audience] = []
        self._daemon_watchers = 0
        self._numbered = 0

    def __len__(self) -> int:
        return len(self._audiences)

    @property
    def watch_daemon(self) -> bool:
        """Whether any fetch sees the daemon's own states."""
        return self._daemon_watchers > 0

    # -- joining and leaving

    def join(
        self,
        session: Session,
        fetch_id: bytes,
        rule: Rule,
        *,
        every: bool = False,
        together: bool = False,
        schema: bool = False,
    ) -> Audience:
        """Make a session a member of the audience for its fetch; it is told nothing yet."""
        dialect = session.dialect
        if schema and dialect is CLASSIC and rule.sort is None:
            dialect = CLASSIC_WITH_SCHEMA
        audience = self._audience(session, dialect, fetch_id, rule, every, together)
        if audience.key not in self._audiences:
            self._enlist(audience)
        audience.join(session.outbox, fetch_id)
        session.fetches[fetch_id] = audience
        return audience

    def _audience(
        self, session: Session, dialect: Dialect, fetch_id: bytes, rule: Rule, every: bool, together: bool
    ) -> Audience:
        """The audience for a fetch, which may be a new one."""
        known, framing, auth = self._audiences, session.framing, session.auth
        if not dialect.is_binary:
            kind = TogetherAudience if together and dialect is CLASSIC and rule.sort is None else Audience
            wanted = kind(fetch_id, rule, dialect, framing, auth, every)
            if dialect.tells_nodes:
                wanted.separators = session.separators or self._tree.separators
                wanted.key += (wanted.separators,)
            return known.get(wanted.key, wanted)
        for nth in itertools.count():  # an audience has each member only once, though a peer may fetch a rule twice
            wanted = BinaryAudience(b"%d" % nth, rule, dialect, framing, auth, every)
            found = known.get(wanted.key, wanted)
            if session.outbox not in found:
                return found
        raise AssertionError

    def next_number(self) -> int:
        """A number for a fetch whose peer leaves that to the daemon; none comes twice in four billion fetches."""
        self._numbered = self._numbered % 0xFFFFFFFF + 1
        return self._numbered

    def leave(self, session: Session, fetch_id: bytes) -> None:
        """End one fetch of a session."""
        audience = session.fetches.pop(fetch_id)
        audience.leave(session.outbox)
        session.outbox.forget(audience)
        if audience.empty:
            self._delist(audience)

    def _enlist(self, audience: Audience) -> None:
        self._audiences[audience.key] = audience
        self._daemon_watchers += audience.rule.sees_daemon
        for place in self._places(audience.rule, make=True):
            place.append(audience)
        if audience.dialect.tells_nodes:
            self._node_watchers.append(audience)
            for element in self._tree.elements.values():
                self._count_nodes(audience, element, 1)
        elements = self._wanted(audience)
        for element in elements:
            element.audiences += (audience,)
        if audience.value_test is not None:
            audience.matched = {element for element in elements if audience.sees_value(element)}
        if audience.window is not None:
            audience.window.fill(element for element in elements if self._matches(audience, element))

    def _delist(self, audience: Audience) -> None:
        del self._audiences[audience.key]
        self._daemon_watchers -= audience.rule.sees_daemon
        for place in self._places(audience.rule):
            place.remove(audience)
        self._forget_empty_places(audience.rule)
        if audience.dialect.tells_nodes:
            self._node_watchers.remove(audience)
        for element in self._wanted(audience):
            element.audiences = tuple(other for other in element.audiences if other is not audience)

    def _places(self, rule: Rule, *, make: bool = False) -> list[list[Audience]]:
        """The lists in which audiences of this rule are found again."""
        if rule.exact_paths is not None:
            if make:
                return [self._exact.setdefault(path, []) for path in rule.exact_paths]
            return [self._exact[path] for path in rule.exact_paths]
        if rule.prefix:
            if make:
                return [self._prefixes.setdefault(len(rule.prefix), {}).setdefault(rule.prefix, [])]
            return [self._prefixes[len(rule.prefix)][rule.prefix]]
        return [self._others]

    def _forget_empty_places(self, rule: Rule) -> None:
        if rule.exact_paths is not None:
            for path in rule.exact_paths:
                if not self._exact[path]:
                    del self._exact[path]
        elif rule.prefix:
            by_prefix = self._prefixes[len(rule.prefix)]
            if not by_prefix[rule.prefix]:
                del by_prefix[rule.prefix]
            if not by_prefix:
                del self._prefixes[len(rule.prefix)]

    def _wanted(self, audience: Audience) -> list[Element]:
        return [element for element in self._tree.matching(audience.rule) if audience.wants(element)]

    # -- the first events of a fetch, and get

    def initial(self, audience: Audience, fetch_id: bytes) -> Iterator[bytes]:
        """The frames that tell a new member what there is."""
        if audience.window is not None:
            yield audience.first_window(audience.window, fetch_id)
            return
        if audience.dialect.tells_nodes:
            nodes = filter(audience.rule.matches_path, audience.nodes)
            for node in sorted(nodes, key=lambda node: (len(node), node)):
                yield audience.frame(legacy_node("add", msgspec.json.encode(node)))
        for element in self.present(audience):
            yield audience.first(element, fetch_id)

    def present(self, audience: Audience) -> list[Element]:
        """What matches now."""
        return [element for element in self._wanted(audience) if self._matches(audience, element)]

    @staticmethod
    def _matches(audience: Audience, element: Element) -> bool:
        return audience.value_test is None or element in audience.matched

    # -- events

    def on_add(self, element: Element) -> None:
        """Tell of a new leaf and, before it, of the nodes that came into being with it."""
        if self._node_watchers:
            self._tell_nodes("add", element, 1)
        if not self._audiences:
            return
        element.audiences = tuple(self._find(element))
        tail = b""
        for audience in element.audiences:
            if not audience.plain or element.access is not None:
                audience.on_add(element)
                continue
            tail = tail or CLASSIC.tail("add", element, element.fetch_only)
            audience.tell("add", element.path, tail)

    def on_remove(self, element: Element) -> None:
        """Tell that a leaf is gone and, after it, which nodes went with it, deepest first."""
        for audience in element.audiences:
            audience.on_remove(element)
        if self._node_watchers:
            self._tell_nodes("remove", element, -1)

    def _tell_nodes(self, kind: str, element: Element, step: int) -> None:
        for audience in self._node_watchers:
            for node in self._count_nodes(audience, element, step)[::step]:
                if audience.rule.matches_path(node):
                    audience.tell(kind, node, legacy_node(kind, msgspec.json.encode(node)))

    @staticmethod
    def _count_nodes(audience: Audience, element: Element, step: int) -> list[str]:
        """Count a leaf in or out of its nodes as the audience knows them; gives those that came or went, root first.

        A node is there for an audience as long as there is a leaf below it that the audience may know of.
        """
        if is_daemons(element.path) or not element.shown_to(audience.auth):
            return []
        counts, turned = audience.nodes, []
        for node in nodes_of(element.path, audience.separators):
            count = counts.get(node, 0) + step
            if count:
                counts[node] = count
            else:
                del counts[node]
            if count == (step > 0):
                turned.append(node)
        return turned

    def _find(self, element: Element) -> list[Audience]:
        path = element.path
        found = [*self._others]
        if self._exact:
            found += self._exact.get(path, ())
        for length, by_prefix in self._prefixes.items():
            found += by_prefix.get(path[:length], ())
        if found and is_daemons(path):
            found = [audience for audience in found if audience.rule.sees_daemon]
        open_to_all, told = element.access is None, []
        for audience in found:
            if (open_to_all and audience.easy) or (audience.rule.matches_path(path) and audience.wants(element)):
                told.append(audience)  # noqa: PERF401 - there is mostly one, and a comprehension is a call
        return told
