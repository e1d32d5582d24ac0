"""Fetches: all audiences of the bus, and the look-up of those that a new path concerns.

A new path is not tested against every rule::

    equals "a/b"         found by the whole path             _exact     {"a/b": [audience]}
    startsWith "a/"      found by the first characters       _prefixes  {2: {"a/": [audience]}}, by length of prefix
    all other rules      tested one by one                   _others, _costly

An element stores its audiences, so that a change needs no look-up at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from jetbus.bus.access import Access, Auth
from jetbus.bus.audiences import (
    Audience,
    BinaryAudience,
    CombinedAudience,
    DescribedAudience,
    DescribedBinaryAudience,
    Places,
    RecordedAudience,
    RecordedBinaryAudience,
)
from jetbus.bus.descriptions import Asked
from jetbus.bus.nodes import Nodes
from jetbus.bus.ports import EventRecorder, Outbox
from jetbus.bus.preparations import STEP, Form, Preparation, Wish
from jetbus.bus.replay import PastElement
from jetbus.bus.session import Session
from jetbus.bus.tree import Element, Tree
from jetbus.paths import is_daemons
from jetbus.rules import Rule
from jetbus.rules.work import UNLIMITED, meter
from jetbus.wire.dialects import CLASSIC
from jetbus.wire.jsonrpc import VERSION_MEMBER
from jetbus.wire.notifications import encode_head, encode_sorted_changes, encode_sorted_halves

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus

Bucket = dict[Audience, None]
"""Audiences of equal places in the index, in the order of their fetches; one of thousands leaves at once."""


class FetchOptions(NamedTuple):
    """Options of a fetch that are not part of its rule, which has the sorting."""

    every: bool = False
    """True if no change may be left out for a slow peer."""
    together: bool = False
    """True if the changes of a turn may come in one message."""
    nodes: bool = False
    """True if nodes are told, too."""
    asked: Asked | None = None
    """Schema, meta data and places in the journal, as far as they are asked for."""


class Fetches:
    """The audiences of the bus and their members."""

    def __init__(
        self, tree: Tree, pattern_steps: PatternSteps, find_record: Callable[[], EventRecorder | None] = lambda: None
    ) -> None:
        self._tree = tree
        self._places = Places(find_record)
        self._pattern_steps = pattern_steps
        self.audiences: dict[object, Audience] = {}
        """All audiences by their key."""
        self._exact: dict[str, Bucket] = {}
        self._prefixes: dict[int, dict[str, Bucket]] = {}
        self._others: Bucket = {}
        self._costly: Bucket = {}
        """Audiences whose tests can take exponential time, and whose steps are therefore limited."""
        self._views: dict[tuple[Auth | None, str], NodeView] = {}
        """Nodes as the audiences that include nodes know them, by user and separators."""
        self._daemon_watchers = 0
        self._last_found: tuple[Audience, ...] = ()
        """Audiences of the element that was added last."""
        self._numbered = 0
        self._preparations = 0
        """Number of open preparations, which are told of new elements, too."""

    def __len__(self) -> int:
        return len(self.audiences)

    @property
    def watch_daemon(self) -> bool:
        """True if the rule of any fetch matches built-in states."""
        return self._daemon_watchers > 0

    # -- joining and leaving

    def join(
        self, session: Session, fetch_id: bytes, chosen: Audience, preparation: Preparation | None = None
    ) -> Audience:
        """Make a session a member of an audience; a new one takes its elements from the preparation, if any."""
        session.account.add_fetch(fetch_id, chosen.rule)
        if chosen.key not in self.audiences:
            self._enlist(chosen, preparation)
        self._admit(session, fetch_id, chosen)
        return chosen

    def watch(self, preparation: Preparation) -> None:
        """Pass new elements to a preparation, as if it were an audience."""
        self._preparations += 1
        for bucket in self._find_buckets(preparation.rule, make=True):
            bucket[cast(Audience, preparation)] = None

    def unwatch(self, preparation: Preparation) -> None:
        """Pass no more elements to a preparation."""
        self._preparations -= 1
        for bucket in self._find_buckets(preparation.rule):
            del bucket[cast(Audience, preparation)]
        self._remove_empty_buckets(preparation.rule)

    @staticmethod
    def _admit(session: Session, fetch_id: bytes, audience: Audience) -> None:
        audience.join(session.outbox, fetch_id)
        session.fetches[fetch_id] = audience

    def choose_audience(self, session: Session, fetch_id: bytes, rule: Rule, options: FetchOptions) -> Audience:
        """Return the audience for a fetch, an existing one if possible."""
        known, dialect = self.audiences, session.dialect
        if not dialect.is_binary:
            wanted = self._make_audience(session, fetch_id, rule, options)
            if session.speaks_jsonrpc:
                wanted.head = encode_head(fetch_id, VERSION_MEMBER)
                wanted.key += (VERSION_MEMBER,)
            if options.nodes or dialect.has_nodes:
                self._include_nodes(wanted, session)
            return known.get(wanted.key, wanted)
        for nth in itertools.count():  # an audience has each member only once, though a peer may fetch a rule twice
            wanted = self._make_audience(session, b"%d" % nth, rule, options)
            if options.nodes:
                self._include_nodes(wanted, session)
            found = known.get(wanted.key, wanted)
            if session.outbox not in found:
                return found
        raise AssertionError

    def _make_audience(self, session: Session, fetch_id: bytes, rule: Rule, options: FetchOptions) -> Audience:
        """Return a new audience of the kind that the options ask for."""
        dialect, asked = session.dialect, options.asked
        fields = fetch_id, rule, dialect, session.framing, session.auth, options.every
        if asked is not None and asked.recorded:
            return (RecordedBinaryAudience if dialect.is_binary else RecordedAudience)(self._places, *fields, asked)
        if asked is not None:
            return (DescribedBinaryAudience if dialect.is_binary else DescribedAudience)(*fields, asked)
        if dialect.is_binary:
            return BinaryAudience(*fields)
        combines = options.together and dialect is CLASSIC and rule.sort is None
        return (CombinedAudience if combines else Audience)(*fields)

    def _include_nodes(self, audience: Audience, session: Session) -> None:
        """Let a new audience be told of nodes, too; they have no value, so a rule that tests values matches none."""
        audience.separators = session.separators or self._tree.separators
        audience.has_nodes = audience.value_test is None or audience.dialect.has_nodes
        audience.key += ("nodes", audience.separators)

    def next_number(self) -> int:
        """Return a fetch id for a binary peer; it repeats only after four billion fetches."""
        self._numbered = self._numbered % 0xFFFFFFFF + 1
        return self._numbered

    def leave(self, session: Session, fetch_id: bytes) -> Iterator[None]:
        """End one fetch of a session; return the steps that remain if no other peer has this fetch."""
        audience = session.fetches.pop(fetch_id)
        session.account.remove_fetch(fetch_id, audience.rule)
        audience.leave(session.outbox)
        session.outbox.forget(audience)
        if not audience.is_empty:
            return iter(())
        self._delist(audience)
        rule = audience.rule
        # A fetch of one path ends without a look at a million elements.
        indexed = rule.exact_paths is not None or rule.prefix
        return self._remove_from({audience}, self._tree.matching(rule) if indexed else self._tree.elements.values())

    def leave_all(self, session: Session) -> Iterator[None]:
        """End all fetches of a session in steps, with one look at each element."""
        left = set()
        while session.fetches:
            fetch_id, audience = session.fetches.popitem()
            session.account.remove_fetch(fetch_id, audience.rule)
            audience.leave(session.outbox)
            if audience.is_empty and audience not in left:
                self._delist(audience)
                left.add(audience)
            yield
        session.outbox.forget_all()
        if left:
            yield from self._remove_from(left, self._tree.elements.values())

    @staticmethod
    def _remove_from(left: set[Audience], elements: Collection[Element]) -> Iterator[None]:
        """Remove audiences without members from elements; until then their events are sent to no peer."""
        return _update_audiences(
            list(elements), lambda before: tuple([audience for audience in before if audience not in left])
        )

    def _enlist(self, audience: Audience, preparation: Preparation | None) -> None:
        """Add a new audience to the index and to its elements."""
        # All that may be too much work comes first, while there is nothing to undo.
        if preparation is not None:
            elements, matching = list(preparation.found), []
            if audience.value_test is not None:
                matching = [element for element in elements if preparation.found[element]]
        else:
            elements = self._find_elements(audience)
            matching = [element for element in elements if self._sees_value(audience, element)]
        if audience.value_test is not None:
            audience.matched = set(matching)
        self.audiences[audience.key] = audience
        self._daemon_watchers += audience.rule.sees_daemon
        for bucket in self._find_buckets(audience.rule, make=True):
            bucket[audience] = None
        if audience.has_nodes:
            self._enter_view(audience)
        finish(_update_audiences(elements, lambda before: (*before, audience)))
        if audience.sorted_matches is not None and preparation is not None:
            audience.sorted_matches.take_over(preparation.sorted_matches or audience.sorted_matches)
        elif audience.sorted_matches is not None:
            audience.sorted_matches.fill(map(audience.sorted_matches.entry, matching))

    def _delist(self, audience: Audience) -> None:
        del self.audiences[audience.key]
        self._daemon_watchers -= audience.rule.sees_daemon
        for bucket in self._find_buckets(audience.rule):
            del bucket[audience]
        self._remove_empty_buckets(audience.rule)
        if audience.has_nodes:
            self._leave_view(audience)

    def _enter_view(self, audience: Audience) -> None:
        """Let an audience share the view of all with the same user and separators."""
        key = audience.auth, audience.separators
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = NodeView(*key)
            for element in self._tree.elements.values():
                if view.shows(element):
                    view.nodes.add(element.path)
        view.audiences[audience] = None
        audience.nodes = view.nodes

    def _leave_view(self, audience: Audience) -> None:
        view = self._views[audience.auth, audience.separators]
        del view.audiences[audience]
        if not view.audiences:
            del self._views[audience.auth, audience.separators]

    def _find_buckets(self, rule: Rule, *, make: bool = False) -> list[Bucket]:
        """Return the buckets of the index that audiences with this rule belong to."""
        if rule.exact_paths is not None:
            if make:
                return [self._exact.setdefault(path, {}) for path in rule.exact_paths]
            return [self._exact[path] for path in rule.exact_paths]
        if rule.prefix:
            if make:
                return [self._prefixes.setdefault(len(rule.prefix), {}).setdefault(rule.prefix, {})]
            return [self._prefixes[len(rule.prefix)][rule.prefix]]
        return [self._costly if rule.has_back_references else self._others]

    def _remove_empty_buckets(self, rule: Rule) -> None:
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

    def _find_elements(self, audience: Audience) -> list[Element]:
        return [element for element in self._tree.matching(audience.rule) if audience.accepts(element)]

    # -- the first events of a fetch, and get

    @staticmethod
    def initial_nodes(audience: Audience, fetch_id: bytes) -> Iterator[bytes]:
        """Yield the frames that announce the existing nodes to a new member, if its fetch includes nodes."""
        if audience.has_nodes:
            nodes = filter(audience.rule.matches_path, audience.nodes)
            for node in sorted(nodes, key=_by_depth):
                yield audience.encode_node_add(node, fetch_id)

    def present(self, audience: Audience) -> list[Element]:
        """Return the elements that match now."""
        return [element for element in self._find_elements(audience) if self._matches(audience, element)]

    @staticmethod
    def _sees_value(audience: Audience, element: Element) -> bool:
        """Return True if the value of an element matches; raise ``LimitReached`` if that takes too much work."""
        meter.spend(len(audience.rule.value))
        return audience.matches_value(element)

    @staticmethod
    def _matches(audience: Audience, element: Element) -> bool:
        return audience.value_test is None or element in audience.matched

    # -- events

    def on_add(self, element: Element) -> None:
        """Announce a new leaf and, before it, the nodes that appeared with it."""
        for view in self._views.values():
            if view.shows(element):
                self._send_nodes(view.audiences, "add", view.nodes.add(element.path))
        if not self.audiences and not self._preparations:
            return
        # Elements with the same audiences share one tuple: with thousands of fetches, copies would take gigabytes.
        audiences = tuple(self._find(element))
        element.audiences = self._last_found = self._last_found if audiences == self._last_found else audiences
        tail = b""
        for audience in element.audiences:
            if not audience.is_plain or element.access is not None:
                audience.on_add(element)
                continue
            tail = tail or CLASSIC.encode_tail("add", element, element.fetch_only)
            audience.send("add", element.path, tail)

    def on_remove(self, element: Element) -> None:
        """Announce that a leaf is gone and, after it, the nodes that vanished with it, deepest first."""
        for audience in element.audiences:
            audience.on_remove(element)
        for view in self._views.values():
            if view.shows(element):
                self._send_nodes(view.audiences, "remove", view.nodes.remove(element.path)[::-1])

    # -- changed rights

    def renew(
        self,
        groups: Mapping[tuple[Access | None, Access | None, bool], list[Element]],
        renewed: Mapping[Auth, Auth | None],
    ) -> None:
        """Put other access of elements and other rights of users into force.

        ``groups`` has all elements by their access before, their access from now on and whether they are methods;
        there are few different ones. Elements that are hidden now are removed by events, those shown now are added.
        Those that can be set now, or no longer, are removed and added again, since only ``add`` shows that. Peers
        receive the removes first.
        """
        appeared: list[tuple[Audience, list[Element]]] = []
        nodes_before = {audience: set(view.nodes) for view in self._views.values() for audience in view.audiences}
        for audience in self.audiences.values():
            before = audience.auth
            now = renewed.get(before, before) if before is not None else None
            for (old, new, is_method), elements in groups.items():
                was, will_be = _sight(old, is_method, before), _sight(new, is_method, now)
                if was == will_be:
                    continue
                if was.shown:
                    self._hide(audience, elements)
                if will_be.shown:
                    appeared.append((audience, elements))
        # Between the removes and the adds: each side must be encoded with the access of its time.
        for (_, new, _), elements in groups.items():
            for element in elements:
                element.access = new
        for audience in self.audiences.values():
            if audience.auth is not None and audience.auth in renewed:
                audience.renew(renewed[audience.auth])
        self._update_keys()
        self._views = {}
        for audience in nodes_before:
            self._enter_view(audience)
        # A node vanishes after everything below it, and appears before it.
        for audience, known in nodes_before.items():
            self._send_nodes([audience], "remove", sorted(known.difference(audience.nodes), key=_by_depth)[::-1])
        for audience, known in nodes_before.items():
            self._send_nodes([audience], "add", sorted(set(audience.nodes) - known, key=_by_depth))
        for audience, elements in appeared:
            self._show(audience, elements)

    def _hide(self, audience: Audience, elements: list[Element]) -> None:
        for element in elements:
            if audience in element.audiences:
                audience.on_remove(element)
                element.audiences = tuple(other for other in element.audiences if other is not audience)

    def _show(self, audience: Audience, elements: list[Element]) -> None:
        rule = audience.rule
        for element in elements:
            path = element.path
            if rule.matches_path(path) and audience.accepts(element) and (rule.sees_daemon or not is_daemons(path)):
                element.audiences += (audience,)
                audience.on_add(element)

    def _update_keys(self) -> None:
        """Update the keys of all audiences; two that have become equal stay apart, the second with a unique key."""
        audiences, self.audiences = list(self.audiences.values()), {}
        for audience in audiences:
            if audience.key in self.audiences:
                audience.key = (*audience.key, object())
            self.audiences[audience.key] = audience

    @staticmethod
    def _send_nodes(audiences: Iterable[Audience], kind: str, nodes: list[str]) -> None:
        """Announce nodes that appear, from the root down, or vanish, from the leaf up."""
        for node in nodes:
            for audience in audiences:
                if audience.rule.matches_path(node):
                    audience.send_node(kind, node)

    def _find(self, element: Element) -> list[Audience]:
        path = element.path
        found = [*self._others]
        if self._exact:
            found += self._exact.get(path, ())
        for length, by_prefix in self._prefixes.items():
            found += by_prefix.get(path[:length], ())
        # A rule sees built-in elements only if it names ``$jet``; ``**`` does not.
        if found and is_daemons(path):
            found = [audience for audience in found if audience.rule.sees_daemon]
        open_to_all, accepting = element.access is None, []
        for audience in found:
            if (open_to_all and audience.is_indexed) or (
                audience.rule.matches_path(path) and audience.accepts(element)
            ):
                accepting.append(audience)  # noqa: PERF401 - there is mostly one, and a comprehension is a call
        if self._costly:
            accepting += self._find_costly(element)
        return accepting

    def _find_costly(self, element: Element) -> list[Audience]:
        """Return the audiences with back references in a rule that matches.

        All patterns of one peer share ``pattern_steps_max`` steps in one turn of the peer that adds, so that a peer
        with a thousand of them cannot occupy the bus with every ``add`` of another.
        """
        found = []
        for audience in self._costly:
            outboxes = list(audience.outboxes)
            before = meter.steps_left = self._pattern_steps.use(outboxes, 0)
            rule = audience.rule
            if (rule.sees_daemon or not is_daemons(element.path)) and (
                rule.matches_path(element.path) and audience.accepts(element)
            ):
                found.append(audience)
            self._pattern_steps.use(outboxes, before - meter.steps_left)
        meter.steps_left = UNLIMITED
        return found


class PatternSteps:
    """Steps that patterns with back references take while a peer has its turn, by the peers that fetch with them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._taken: dict[Outbox, int] = {}
        self._turn = 0.0
        """End of the turn in which they were taken."""

    def use(self, outboxes: Collection[Outbox], used: int = 0) -> int:
        """Count steps for the peers that share a fetch; return the steps left to them.

        The members of an audience share the work of its rule, so that it has the steps of the one with the most left.
        """
        bus = self._bus
        if bus.serving.turn_ends != self._turn or math.isinf(bus.serving.turn_ends):
            self._taken, self._turn = {}, bus.serving.turn_ends
        taken = self._taken
        for outbox in outboxes:
            taken[outbox] = taken.get(outbox, 0) + used
        left = bus.limits.pattern_steps_max - min([taken[outbox] for outbox in outboxes], default=0)
        if used and left <= 0:
            bus.limit_hits["pattern_steps_max"] += 1
        return max(left, 0)


def finish(steps: Iterator[None]) -> None:
    """Do all steps of a work at once."""
    for _ in steps:
        pass


def _update_audiences(
    elements: Iterable[Element], change: Callable[[tuple[Audience, ...]], tuple[Audience, ...]]
) -> Iterator[None]:
    """Replace the audiences of elements, a few in each step.

    Elements that share one tuple share the new one, too: with thousands of fetches over thousands of elements, copies
    would take gigabytes and a tuple for each element seconds.
    """
    changed: dict[int, tuple[tuple[Audience, ...], tuple[Audience, ...]]] = {}
    for count, element in enumerate(elements):
        if count % STEP == STEP - 1:
            yield
        before = element.audiences
        known = changed.get(id(before))
        if known is None:
            # A reference to the old tuple keeps its id from being reused meanwhile.
            known = changed[id(before)] = (before, change(before))
        element.audiences = known[1]


class NodeView:
    """Nodes that all fetches of a user see by the same separators: a leaf is below them that the user may know of."""

    __slots__ = ("_auth", "audiences", "nodes")

    def __init__(self, auth: Auth | None, separators: str) -> None:
        self._auth = auth
        self.nodes = Nodes(separators)
        self.audiences: dict[Audience, None] = {}

    def shows(self, element: Element) -> bool:
        """Return True if the nodes above an element are part of this view."""
        return element.shown_to(self._auth) and not is_daemons(element.path)


def _by_depth(node: str) -> tuple[int, str]:
    """Return the place of a node in an order that has each behind those above it."""
    return len(node), node


class _Sight(NamedTuple):
    """The view that a user has of an element, as far as access decides it."""

    shown: bool
    settable: bool


def _sight(access: Access | None, is_method: bool, auth: Auth | None) -> _Sight:
    if access is None:
        return _Sight(True, True)
    if not access.may_fetch(auth):
        return _Sight(False, False)
    return _Sight(True, access.may_call(auth) if is_method else access.may_set(auth))


class PendingFetch:
    """A fetch that has not joined its audience yet, and the response to it."""

    def __init__(
        self,
        fetches: Fetches,
        session: Session,
        fetch_id: bytes,
        rule: Rule,
        options: FetchOptions,
        response: bytes,
        events_first: bool,
    ) -> None:
        self._fetches = fetches
        self._session = session
        self._fetch_id = fetch_id
        self._options = options
        self._audience = fetches.choose_audience(session, fetch_id, rule, options)
        self.rule = rule
        self.response = response
        self.events_first = events_first
        """True if the response comes behind the first events."""

    @property
    def has_methods(self) -> bool:
        """True if the peer receives events of methods."""
        return self._audience.dialect.has_methods

    def encode_past(self, kind: str, element: PastElement) -> bytes:
        """Return the frame of a past event."""
        return self._audience.encode_past(kind, element, self._fetch_id)

    def join_unprepared(self) -> tuple[Audience, list[Element]]:
        """Join the audience without a preparation; return it and the present elements."""
        self._renew()
        audience = self._fetches.join(self._session, self._fetch_id, self._audience)
        return audience, self._fetches.present(audience)

    def _renew(self) -> None:
        """Choose the audience anew: its last member may have left since the fetch began, or the user have other rights.

        An audience that was left must not be joined again, because it is taken out of its elements in later steps.
        """
        self._audience = self._fetches.choose_audience(self._session, self._fetch_id, self.rule, self._options)

    def make_wish(self) -> Wish:
        """Return the elements to prepare, and the step that follows."""
        self._renew()
        audience, fetch_id, auth = self._audience, self._fetch_id, self._session.auth

        def encode(element: Element) -> bytes:
            return audience.encode_add(element, fetch_id)

        def encode_halves(element: Element) -> tuple[bytes, bytes]:
            members = b"" if audience.asked is None else audience.asked.encode(element)
            return encode_sorted_halves(element, element.fetch_only_for(auth), members)

        form = encode if audience.sorted_matches is None else encode_halves
        return Wish(self.rule, self.has_methods, (audience.key, fetch_id), form, self._join)

    def _join(self, form: Form) -> None:
        """Join the audience, and send the response and the events of the present elements, all at once."""
        self._renew()
        session, fetch_id = self._session, self._fetch_id
        audience = self._fetches.join(session, fetch_id, self._audience, form.preparation)
        if self.response and not self.events_first:
            session.send(self.response)
        if audience.sorted_matches is None:
            for frame in self._fetches.initial_nodes(audience, fetch_id):
                session.outbox.put(frame)
            for block in form.blocks():
                session.outbox.put(block)
        else:
            changes = encode_sorted_changes(form.blocks(), form.count)
            session.outbox.put(audience.encode_sorted(changes, fetch_id))
        if self.response and self.events_first:
            session.send(self.response)
