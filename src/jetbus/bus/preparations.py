"""Preparations: the elements that gets and fetches start with, found and encoded in short steps.

A rule may match a hundred thousand states, and after a restart a hundred dashboards ask for them at the same time. So
the work is cut into steps, between which other peers have their turn, and requests that ask for the same share it::

    Preparation    rule, user, methods or not      which elements match, in order       one for all forms
    Form           and dialect, fetch id, ...      their texts                          one for all equal requests

While a preparation is open it is among the audiences of its elements, like a fetch: it sees every change, and looks
at such an element again. Nothing else has to be compared at the end, so that the last step, in which a get is
answered or a fetch joins its audience, is short as well: no event is missing and none comes twice. Each request that
shares a form drives its steps in the turns of its peer, and later requests find it nearly done.

Texts take memory until they are sent. A long form therefore waits for a place in the ``Room``; requests that share it
share the place. Users with other rights never share anything, since only requests of the same user are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jetbus.bus.account import ELEMENT_BYTES
from jetbus.bus.sorting import SortedMatches
from jetbus.bus.tasks import Place, Room, Step
from jetbus.errors import LimitReached
from jetbus.paths import is_daemons
from jetbus.rules.work import meter
from jetbus.wire import jsonrpc
from jetbus.wire.notifications import encode_sorted_list

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audiences import Audience
    from jetbus.bus.bus import Bus
    from jetbus.bus.ports import Outbox
    from jetbus.bus.session import Session
    from jetbus.bus.tree import Element
    from jetbus.rules import Rule

STEP = 25
"""Number of elements between two looks at the clock."""
SMALL_SEARCH, SMALL_BYTES = 1_000, 1 << 20
"""Number of elements up to which a form needs no room, unless they are larger than that."""
FOUND_BYTES = 300
"""Bytes that a form keeps for an element, besides its text, alone and as a part of its answer."""
TEXT_BYTES = 64
"""Bytes of the text of an element, besides those that its account has for a long path or value."""
NARROW = 500
"""Number of positions of a sorted request up to which only the visible entries are encoded, in the last step."""
LONG_BYTES = 64
"""Values above this length are checked for the work of their tests one by one."""
BLOCK_BYTES = 16 * 1024
"""About as many bytes of first events are put into an outbox at once."""
BLOCK_ENTRIES, WINDOWS_MAX = 100, 20
"""Entries of a sorted request that are encoded in one step, and attempts before all are encoded at once."""
READING_S, READING_LOOKS = 0.05, 2
"""A peer has so much time to read a long answer, so many times, before the next one is sent to another peer."""
TOO_LONG = "the answer is too long; narrow the rule, or ask for the parts one by one"


class Preparation:
    """The elements that a rule matches for a user, kept up to date while requests need them.

    It takes the place of an audience in elements and in the index of fetches.
    """

    __slots__ = (
        "_candidates",
        "_changed",
        "_matches_value",
        "_tuples",
        "auth",
        "bus",
        "forms",
        "found",
        "has_methods",
        "is_void",
        "rule",
        "sorted_matches",
    )

    is_plain = is_raw = is_indexed = False
    lane_framing = 0
    wants_schema = wants_meta = True

    def __init__(self, bus: Bus, rule: Rule, auth: Auth | None, has_methods: bool) -> None:
        self.bus = bus
        self.rule = rule
        self.auth = auth
        self.has_methods = has_methods
        self._matches_value = rule.matches_value
        self._candidates = deque(bus.tree.candidates(rule))
        """Elements that have not been looked at."""
        self.found: dict[Element, bool] = {}
        """Elements with a path that matches, in order of creation; True if the value matches, too."""
        self._changed: dict[Element, None] = {}
        """Elements among them that have changed since."""
        self.sorted_matches = None if rule.sort is None else SortedMatches(rule.sort, auth)
        self.forms: dict[Hashable, Form] = {}
        self._tuples: dict[int, tuple[tuple[Audience, ...], tuple[Audience, ...]]] = {}
        """Audiences of elements without this preparation, and with it; elements share them."""
        self.is_void = False
        """True once rights have changed: requests that need it must prepare again."""

    # -- as an audience

    @property
    def outboxes(self) -> Iterator[Outbox]:
        """Outboxes of the peers that share it."""
        for form in self.forms.values():
            yield from form.users

    def accepts(self, element: Element) -> bool:
        """Return True if the user may see an element, and wants it if it is a method."""
        return (self.has_methods or not element.is_method) and element.shown_to(self.auth)

    def on_add(self, element: Element) -> None:
        """Look at a new element later."""
        self._candidates.append(element)

    def on_change(self, element: Element) -> None:
        """Look at an element again."""
        if element in self.found:
            self._changed[element] = None

    on_stale = on_change

    def on_described(self, element: Element, _data: bytes) -> None:
        """Look at an element again."""
        self.on_change(element)

    def on_remove(self, element: Element) -> None:
        """Forget an element."""
        self._changed.pop(element, None)
        if self.found.pop(element, False) and self.sorted_matches is not None:
            self.sorted_matches.place(element, False)
        for form in self.forms.values():
            form.forget(element)

    # -- steps

    def look(self) -> bool:
        """Look at the next element; return False if there is none."""
        try:
            if self._changed:
                element, _ = self._changed.popitem()
                self._judge(element)
                return True
            if self._candidates:
                element = self._candidates.popleft()
                meter.spend(1)
                if self._matches(element):
                    self._attend(element)
                    self._judge(element)
                return True
        except LimitReached:
            # Too much work for one request; another one that shares it goes on.
            self._candidates.appendleft(element)
            raise
        self._tuples = {}
        return False

    def _matches(self, element: Element) -> bool:
        path, rule = element.path, self.rule
        return (
            rule.matches_path(path)
            and (rule.sees_daemon or not is_daemons(path))
            and self.accepts(element)
            and self.bus.tree.elements.get(path) is element
        )

    def _attend(self, element: Element) -> None:
        """See the changes of an element from now on."""
        before, listener = element.audiences, cast("Audience", self)
        if listener in before:
            return  # it was added a moment ago
        known = self._tuples.get(id(before))
        if known is None:
            # A reference to the old tuple keeps its id from being reused meanwhile.
            known = self._tuples[id(before)] = (before, (*before, listener))
        element.audiences = known[1]

    def _judge(self, element: Element) -> None:
        """Test the value of an element, and let the forms encode it."""
        meter.spend(len(self.rule.value))
        matches = self._matches_value is None or self._passes(element)
        before, self.found[element] = self.found.get(element, False), matches
        if self.sorted_matches is not None and (before or matches):
            self.sorted_matches.place(element, matches)
        for form in self.forms.values():
            form.note(element)

    def _passes(self, element: Element) -> bool:
        value, test = element.value, self._matches_value
        if value is None or test is None:
            return False
        if len(value) > LONG_BYTES:  # a list may be in it, and a test of lists counts its members
            meter.spend(0)
        return test(jsonrpc.loads(value))

    def end(self) -> Iterator[None]:
        """Leave all elements, a few in each step."""
        elements, self.found, self._candidates = [*self.found, *self._candidates], {}, deque()
        self._changed, self._tuples, self.forms = {}, {}, {}
        listener = cast("Audience", self)
        shared: dict[int, tuple[tuple[Audience, ...], tuple[Audience, ...]]] = {}
        for count, element in enumerate(elements):
            if count % STEP == STEP - 1:
                yield
            before = element.audiences
            known = shared.get(id(before))
            if known is None:
                known = shared[id(before)] = (before, tuple([one for one in before if one is not listener]))
            element.audiences = known[1]


class Form:
    """Texts of the elements of a preparation, as equal requests need them.

    ``encode`` returns the text of an element or, for a sorted request, its parts before and behind the position.
    """

    def __init__(self, preparation: Preparation, key: Hashable, encode: Callable[[Element], Any], most: int) -> None:
        self.preparation = preparation
        self.key = key
        self.place: Place | None = None
        self.users: dict[Outbox, int] = {}
        """Peers that share it, with the number of their requests."""
        sort = preparation.rule.sort
        self._is_sorted = sort is not None
        self._is_narrow = sort is not None and sort.last - sort.first < NARROW
        self._encode = encode
        self._most = most
        self.size = 0
        """Bytes of the texts."""
        self._texts: dict[Element, Any] = {}
        """Texts in the order of the elements; empty for those with a value that does not match."""
        self._todo = deque(preparation.found)
        self._blocks: list[bytes] = []
        self._window: list[Element] | None = None
        """Visible elements of a sorted request, until one changes; their blocks are encoded with positions."""
        self._encoded = 0
        """Number of them that are encoded."""
        self._windows = 0
        """Number of attempts."""

    def note(self, element: Element) -> None:
        """Encode an element again that is new or has changed."""
        self._todo.append(element)
        self._blocks, self._window = [], None

    def forget(self, element: Element) -> None:
        """Forget an element that is gone."""
        text = self._texts.pop(element, b"")
        self.size -= 0 if self._is_sorted else len(text)
        self._blocks, self._window = [], None

    def steps(self) -> Iterator[None]:
        """Look and encode in steps; behind the last one the texts are as the elements are, until others have a turn."""
        bus = self.preparation.bus
        work_left, is_done = bus.limits.rule_work_max, False
        while not is_done:
            before = meter.units
            try:
                with meter.ceiling(work_left, "rule_work_max"):
                    is_done = self._advance()
            except LimitReached as error:
                if error.limit != "rule_work_max":
                    raise
                raise bus.limit_reached("rule_work_max", "too much work for one request") from None
            # The meter runs on for all peers; the work of others between two steps is not work of this request.
            work_left -= meter.units - before
            if not is_done:
                yield

    def _advance(self) -> bool:
        """Look at some elements and encode some; return True once nothing is left to do."""
        preparation, todo = self.preparation, self._todo
        for _ in range(STEP):
            if self.size > self._most:
                raise preparation.bus.limit_reached("answer_bytes_max", TOO_LONG)
            if preparation.is_void:
                return True
            if preparation.look():
                continue
            if self._is_narrow:
                todo.clear()
            if not todo:
                return not self._is_sorted or self._encode_block()
            element = todo.popleft()
            if element in preparation.found:
                text = self._encode(element) if preparation.found[element] else b""
                before, self._texts[element] = self._texts.get(element, b""), text
                if not self._is_sorted:  # only a part of a sorted list is sent
                    self.size += len(text) - len(before)
        return False

    def _encode_block(self) -> bool:
        """Encode some entries of a sorted request with their positions; return True once all are encoded."""
        matches, sort = self.preparation.sorted_matches, self.preparation.rule.sort
        if matches is None or sort is None:
            return True
        if self._window is None:
            self._window, self._blocks, self._encoded = matches.visible(), [], 0
            self._windows += 1
        count, window = BLOCK_ENTRIES, self._window
        # Where changes come faster than this is done, the last attempt is done in one step.
        if self._windows > WINDOWS_MAX:
            count = len(window)
        at = self._encoded
        some = window[at : at + count]
        self._encoded += len(some)
        texts = [self._encode(one) for one in some] if self._is_narrow else [self._texts[one] for one in some]
        if texts:
            # A dialect without positions has the whole text of an entry.
            with_positions = isinstance(texts[0], tuple)
            self._blocks.append(encode_sorted_list(texts, sort.first + at) if with_positions else b"".join(texts))
        return self._encoded == len(window)

    def close(self) -> None:
        """Let no other request share it, because the first one is answered: its place must not be taken for ever."""
        forms = self.preparation.forms
        if forms.pop(self.key, None) is self:
            self.key = object()
            forms[self.key] = self

    def shrink_place(self) -> None:
        """Give back the room that was estimated too large; the texts of sorted matches are not counted."""
        if self.place is not None and not self._is_sorted:
            self.place.shrink(len(self.preparation.found) * FOUND_BYTES + 2 * self.size)

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self._window) if self._window is not None else sum(map(bool, self._texts.values()))

    def blocks(self) -> list[bytes]:
        """Return the texts joined to blocks, the same ones for all that share them; sorted entries have commas."""
        if not self._is_sorted and not self._blocks and self._texts:
            texts = self.texts()
            count = max(1, BLOCK_BYTES * len(texts) // (1 + self.size))
            self._blocks = [b"".join(texts[at : at + count]) for at in range(0, len(texts), count)]
        return self._blocks

    def texts(self) -> list[bytes]:
        """Return the texts of all matches, where they are not sorted."""
        return list(filter(None, self._texts.values()))


class Wish(NamedTuple):
    """A get or fetch of the present."""

    rule: Rule
    has_methods: bool
    form: Hashable
    """Everything else that its texts depend on."""
    encode: Callable[[Element], Any]
    answer: Callable[[Form], None]
    """Called with the texts once they are complete."""


class Preparations:
    """The open preparations of the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[Hashable, Preparation] = {}
        self._room, self._answers = self._make_room(), self._make_room()
        self.begun = 0
        """Number of preparations so far; equal requests at the same time count as one."""

    def _make_room(self) -> Room:
        bus = self._bus
        return Room(lambda: bus.limits.search_bytes_max, lambda: bus.limit_hits.update(["search_bytes_max"]))

    def close(self) -> None:
        """Start nothing any more, because the daemon stops."""
        self._room.close()
        self._answers.close()

    def __len__(self) -> int:
        return len(self._open)

    def serve(self, session: Session, make_wish: Callable[[], Wish]) -> Generator[Step]:
        """Answer a get or fetch in short steps, together with all that ask for the same at the same time."""
        while True:
            answering: Place | None = None
            wish = make_wish()
            form = self._enter(session, wish)
            try:
                if form.place is not None:
                    yield form.place
                yield from form.steps()
                form.shrink_place()
                # Unread answers are bounded, too: requests that share a form would else all be answered at once.
                if form.size > SMALL_BYTES:
                    answering = Place(self._answers, session.address, form.size)
                    yield answering
                    yield from form.steps()
                if not form.preparation.is_void:
                    form.close()
                    wish.answer(form)
                    return
            finally:
                if answering is not None:
                    self._look_later(answering, session.outbox, READING_LOOKS)
                self._leave(session, form)

    def _enter(self, session: Session, wish: Wish) -> Form:
        """Return the form for a request, an existing one if possible."""
        bus, rule = self._bus, wish.rule
        key = rule, session.auth, wish.has_methods
        preparation = self._open.get(key)
        if preparation is None:
            self.begun += 1
            preparation = self._open[key] = Preparation(bus, *key)
            bus.fetches.watch(preparation)
        form = preparation.forms.get(wish.form)
        if form is None:
            most = bus.limits.answer_bytes_max
            form = preparation.forms[wish.form] = Form(preparation, wish.form, wish.encode, most)
            form.place = self._find_place(session, rule)
        form.users[session.outbox] = form.users.get(session.outbox, 0) + 1
        return form

    def _find_place(self, session: Session, rule: Rule) -> Place | None:
        bus = self._bus
        count, elements = bus.tree.count_candidates(rule), len(bus.tree.elements)
        if count <= SMALL_SEARCH and bus.book.all.kept_bytes < SMALL_BYTES:
            return None
        # An estimate by the average element.
        text = TEXT_BYTES + max(0, bus.book.all.kept_bytes // max(1, elements) - ELEMENT_BYTES)
        return Place(self._room, session.address, count * (FOUND_BYTES + 2 * text))

    def _leave(self, session: Session, form: Form) -> None:
        """End the part of a session in a form; the last one ends the form, and the last form the preparation."""
        form.users[session.outbox] -= 1
        if not form.users[session.outbox]:
            del form.users[session.outbox]
        if form.users:
            return
        preparation = form.preparation
        if preparation.forms.get(form.key) is form:
            del preparation.forms[form.key]
        if not preparation.forms and not preparation.is_void:
            self._end(session, preparation)
        # Last, since it may end other requests of this preparation, of peers that left while they waited for room.
        if form.place is not None:
            form.place.leave()

    def _end(self, session: Session, preparation: Preparation) -> None:
        del self._open[preparation.rule, preparation.auth, preparation.has_methods]
        self._bus.fetches.unwatch(preparation)
        steps = preparation.end()
        if len(preparation.found) > SMALL_SEARCH:
            self._bus.run_chore(session, steps)
        else:
            deque(steps, 0)  # at once

    def _look_later(self, answering: Place, outbox: Outbox, looks: int) -> None:
        # Not at once: an answer counts as unread only when the daemon has written it, at the end of the turn.
        self._bus.worker.later(READING_S, partial(self._await_reader, answering, outbox, looks - 1))

    def _await_reader(self, answering: Place, outbox: Outbox, looks: int) -> None:
        """Give back the place of an answer when its peer has read most of it, or has had some time to."""
        if not looks or outbox.closed or outbox.unread_bytes < answering.size // 2:
            answering.leave()
        else:
            self._look_later(answering, outbox, looks)

    def void(self) -> None:
        """Let everybody prepare again, because users or elements have other rights."""
        for preparation in self._open.values():
            preparation.is_void = True
            self._bus.fetches.unwatch(preparation)
            deque(preparation.end(), 0)
        self._open = {}
