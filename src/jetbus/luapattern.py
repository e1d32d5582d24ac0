"""Lua 5.1 patterns, by which peers of the 2012 dialect select paths (`path:match(pattern)`).

`lua_matcher` turns a pattern into a test of paths.

Patterns come from untrusted peers, so there is no backtracking. A match walks the pattern once and keeps *all*
positions of the path that the pattern so far can end at, as the bits of one integer: bit i stands for "before
character i". An item moves the whole set at once:

    path  a b b c      after "a"   0010      bit 1: before the first b
                       after "b*"  1110      one addition: its carry ripples through the run of b

Greedy and lazy quantifiers are the same, since the result is only match or no match.

Captures matter only to back references (`%1`). For a capture that has one, the set is split by the captured text.
Only there can the work grow exponentially, and STEPS_MAX bounds it.

Invariant: the result is that of Lua, with two exceptions. A match that would need more than STEPS_MAX steps is no
match. A malformed pattern is refused at once, where Lua complains only on reaching the malformed part. Lua works on
bytes, this module on text: the classes (`%a`, ...) know ASCII only, as in the C locale, and `.` is one character.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from typing import Final, NoReturn, Protocol, TypeAlias, cast

__all__ = ["CAPTURES_MAX", "PATTERN_CHARS_MAX", "STEPS_MAX", "lua_matcher"]

PATTERN_CHARS_MAX: Final = 1000
CAPTURES_MAX: Final = 32  # Lua's own limit
STEPS_MAX: Final = 20_000  # per match; measured, a step takes 2 microseconds at most
STEP_UNITS: Final = 5  # of a tenth of a microsecond, as the work of rules is counted in

_Ranges: TypeAlias = tuple[tuple[int, int], ...]  # code points, both ends included
_Captured: TypeAlias = tuple[int | str | None, ...]  # a slot: not seen yet, open since a position, or its text
_States: TypeAlias = dict[_Captured, int]  # captures -> positions reachable with them

_ANY: Final[_Ranges] = ((0, 0x10FFFF),)
_LETTER_CLASSES: Final[Mapping[str, _Ranges]] = {
    "a": ((0x41, 0x5A), (0x61, 0x7A)),
    "c": ((0x00, 0x1F), (0x7F, 0x7F)),
    "d": ((0x30, 0x39),),
    "l": ((0x61, 0x7A),),
    "p": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
    "u": ((0x41, 0x5A),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "x": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
    "z": ((0x00, 0x00),),
}


class Meter(Protocol):
    """Counter of the work of many matches, and the steps that they may still take together."""

    units: int
    steps_left: int


@dataclass(slots=True)
class _NoMeter:
    units: int = 0
    steps_left: int = sys.maxsize


def lua_matcher(pattern: str, meter: Meter | None = None) -> Callable[[str], bool]:
    """Return a test that `path:match(pattern)` finds something; raise ValueError for a malformed pattern.

    Steps are counted on the meter. Where it allows fewer than STEPS_MAX, a match that needs more is no match.

    >>> is_temperature = lua_matcher("^room/%d+/temp$")
    >>> is_temperature("room/12/temp"), is_temperature("room/kitchen/temp")
    (True, False)
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(f"Lua pattern of {len(pattern)} characters is longer than {PATTERN_CHARS_MAX}; shorten it")
    program = _trim(_Parser(pattern).program())
    text = _leading_text(program.items)
    if len(text) == len(program.items):
        return _PLAIN_MATCHERS[program.at_start, program.at_end](text)
    shortened, counted = _shorten(program), meter or _NoMeter()
    return lambda path: shortened.matches(path, counted)


# Patterns that need no walk: plain text, with or without anchors.

_PLAIN_MATCHERS: Final[Mapping[tuple[bool, bool], Callable[[str], Callable[[str], bool]]]] = {
    (False, False): lambda text: lambda path: text in path,
    (True, False): lambda text: lambda path: path.startswith(text),
    (False, True): lambda text: lambda path: path.endswith(text),
    (True, True): lambda text: lambda path: path == text,
}


# Characters.


class _CharClass:
    """The characters that one item of a pattern accepts."""

    __slots__ = ("bits", "ranges")

    def __init__(self, ranges: _Ranges) -> None:
        self.ranges = ranges
        self.bits = _Bits(ranges)

    def holds_nul(self) -> bool:
        return self.bits[0] == "1"

    def literal(self) -> str:
        if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]:
            return chr(self.ranges[0][0])
        return ""


class _Bits(dict[int, str]):
    """A `str.translate` table to "1" for members and "0" for others, filled on demand and with ASCII only."""

    def __init__(self, ranges: _Ranges) -> None:
        super().__init__()
        self._ranges = ranges

    def __missing__(self, code: int) -> str:
        bit = "1" if any(low <= code <= high for low, high in self._ranges) else "0"
        if code < 0x80:
            self[code] = bit
        return bit


def _complement(ranges: _Ranges) -> _Ranges:
    gaps = []
    free = 0
    for low, high in sorted(ranges):
        if low > high:
            continue
        if low > free:
            gaps.append((free, low - 1))
        free = max(free, high + 1)
    if free <= _ANY[0][1]:
        gaps.append((free, _ANY[0][1]))
    return tuple(gaps)


def _just(char: str) -> _Ranges:
    return ((ord(char), ord(char)),)


def _escaped(char: str) -> _Ranges:
    """Return the ranges of `%` and a character: a class if it is the letter of one, else the character itself."""
    ranges = _LETTER_CLASSES.get(char.lower()) if char.isascii() else None
    if ranges is None:
        return _just(char)
    return _complement(ranges) if char.isupper() else ranges


# Positions.


class _StepLimitError(Exception):
    """Match that needs more than STEPS_MAX steps."""


class _Path:
    """A path during one match: its class masks, and the steps still allowed."""

    __slots__ = ("_backwards", "_masks", "steps_left", "text")

    def __init__(self, text: str, steps: int) -> None:
        self.text = text
        self._backwards = text[::-1]
        self._masks: dict[_CharClass, int] = {}
        self.steps_left = steps

    def spend(self, steps: int) -> None:
        """Count steps; on a long path each is weighed, as it moves long integers."""
        self.steps_left -= steps + steps * len(self.text) // 4096
        if self.steps_left < 0:
            raise _StepLimitError

    def mask(self, chars: _CharClass) -> int:
        """Return the positions that have a character of this class behind them."""
        mask = self._masks.get(chars)
        if mask is None:
            self.spend(1 + len(self.text) // 128)
            mask = self._masks[chars] = int("0" + self._backwards.translate(chars.bits), 2)
        return mask

    def each(self, positions: int) -> Iterator[int]:
        self.spend(positions.bit_count())
        while positions:
            lowest = positions & -positions
            yield lowest.bit_length() - 1
            positions ^= lowest


def _once(positions: int, mask: int) -> int:
    return (positions & mask) << 1


def _at_most_once(positions: int, mask: int) -> int:
    return positions | _once(positions, mask)


def _any_number(positions: int, mask: int) -> int:
    return (((positions & mask) + mask) ^ mask) | positions


def _at_least_once(positions: int, mask: int) -> int:
    return _any_number(_once(positions, mask), mask)


_QUANTIFIERS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "?": _at_most_once,
    "*": _any_number,
    "-": _any_number,
    "+": _at_least_once,
}


# Items of a pattern.


class _Item:
    """An item of a pattern. Most items only move positions and leave captures alone."""

    __slots__ = ()

    def move(self, path: _Path, positions: int) -> int:
        raise NotImplementedError

    def step(self, path: _Path, states: _States) -> _States:
        path.spend(len(states))
        return {captured: moved for captured, positions in states.items() if (moved := self.move(path, positions))}


@dataclass(frozen=True, slots=True)
class _Chars(_Item):
    """A character class with its quantifier."""

    chars: _CharClass
    repeat: Callable[[int, int], int] = _once

    def move(self, path: _Path, positions: int) -> int:
        return self.repeat(positions, path.mask(self.chars))

    def literal(self) -> str:
        return self.chars.literal() if self.repeat is _once else ""

    def may_be_empty(self) -> bool:
        return self.repeat in (_at_most_once, _any_number)

    def takes_everything(self) -> bool:
        return self.repeat is _any_number and self.chars.ranges == _ANY


@dataclass(frozen=True, slots=True)
class _Balanced(_Item):
    """`%bxy`: from an x to the y that closes it."""

    opening: str
    closing: str

    def move(self, path: _Path, positions: int) -> int:
        path.spend(1 + len(path.text) // 8)
        ends = bytearray(b"0") * (len(path.text) + 1)
        for start, end in self._pairs(path.text):
            if positions >> start & 1:
                ends[-1 - end] = ord("1")
        return int(ends, 2)

    def _pairs(self, text: str) -> Iterator[tuple[int, int]]:
        opened: list[int] = []
        for at, char in enumerate(text):
            if char == self.closing and opened:
                yield opened.pop(), at + 1
            if char == self.opening:
                opened.append(at)


@dataclass(frozen=True, slots=True)
class _Frontier(_Item):
    """`%f[set]`: after a character outside the set, before one inside; beyond either end is a NUL."""

    chars: _CharClass

    def move(self, path: _Path, positions: int) -> int:
        mask = path.mask(self.chars)
        nul = int(self.chars.holds_nul())
        inside_after = mask | nul << len(path.text)
        inside_before = mask << 1 | nul
        return positions & inside_after & ~inside_before


@dataclass(frozen=True, slots=True)
class _Open(_Item):
    """Start of a capture that has a back reference."""

    slot: int

    def step(self, path: _Path, states: _States) -> _States:
        return {
            _with_slot(captured, self.slot, start): 1 << start
            for captured, positions in states.items()
            for start in path.each(positions)
        }


@dataclass(frozen=True, slots=True)
class _Close(_Item):
    """End of a capture that has a back reference."""

    slot: int

    def step(self, path: _Path, states: _States) -> _States:
        closed: _States = {}
        for captured, positions in states.items():
            start = cast(int, captured[self.slot])
            for end in path.each(positions):
                key = _with_slot(captured, self.slot, path.text[start:end])
                closed[key] = closed.get(key, 0) | 1 << end
        return closed


@dataclass(frozen=True, slots=True)
class _Back(_Item):
    """`%1`: the text of a capture once more."""

    slot: int

    def step(self, path: _Path, states: _States) -> _States:
        return {
            captured: moved
            for captured, positions in states.items()
            if (moved := _repeat(path, positions, cast(str, captured[self.slot])))
        }


def _with_slot(captured: _Captured, slot: int, content: int | str) -> _Captured:
    return (*captured[:slot], content, *captured[slot + 1 :])


def _repeat(path: _Path, positions: int, text: str) -> int:
    moved = 0
    for at in path.each(positions):
        if path.text.startswith(text, at):
            moved |= 1 << at + len(text)
    return moved


# Whole patterns.


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled pattern."""

    items: tuple[_Item, ...]
    at_start: bool
    at_end: bool
    slots: int  # captures with a back reference
    prefix: str = ""  # plain text before the items, if anchored
    suffix: str = ""  # plain text after them, if anchored
    needle: str = ""  # the longest plain text among them

    def matches(self, path: str, meter: Meter) -> bool:
        if self.needle not in path or not (path.startswith(self.prefix) and path.endswith(self.suffix)):
            return False
        # Without captures the steps are at most as many as the pattern has characters, and need no limit from outside.
        allowed = min(STEPS_MAX, meter.steps_left) if self.slots else STEPS_MAX
        walked = _Path(path, allowed)
        try:
            return self._walk(walked)
        except _StepLimitError:
            return False
        finally:
            steps = allowed - walked.steps_left
            meter.units += steps * STEP_UNITS
            if self.slots:
                meter.steps_left -= steps

    def _walk(self, path: _Path) -> bool:
        length = len(path.text)
        states: _States = {(None,) * self.slots: 1 << len(self.prefix) if self.at_start else (2 << length) - 1}
        for item in self.items:
            states = item.step(path, states)
            if not states:
                return False
        end = length - len(self.suffix)
        return not self.at_end or any(positions >> end & 1 for positions in states.values())


def _trim(program: _Program) -> _Program:
    """Return the same pattern without the items at its ends that match every path."""
    items, at_end = _without_idle_end(program.items, program.at_end)
    backwards, at_start = _without_idle_end(items[::-1], program.at_start)
    return replace(program, items=backwards[::-1], at_start=at_start, at_end=at_end)


def _without_idle_end(items: tuple[_Item, ...], anchored: bool) -> tuple[tuple[_Item, ...], bool]:
    while items and isinstance(last := items[-1], _Chars):
        if not (last.takes_everything() if anchored else last.may_be_empty()):
            break
        items, anchored = items[:-1], False
    return items, anchored


def _shorten(program: _Program) -> _Program:
    """Return the same pattern without its anchored plain text, which needs no walk."""
    items = program.items
    prefix = _leading_text(items) if program.at_start else ""
    items = items[len(prefix) :]
    suffix = _leading_text(items[::-1])[::-1] if program.at_end else ""
    items = items[: len(items) - len(suffix)]
    return replace(program, items=items, prefix=prefix, suffix=suffix, needle=_longest_text(items))


def _literal(item: _Item) -> str:
    """Return the only character that an item matches, empty if there are others."""
    return item.literal() if isinstance(item, _Chars) else ""


def _leading_text(items: tuple[_Item, ...]) -> str:
    return "".join(takewhile(bool, map(_literal, items)))


def _longest_text(items: tuple[_Item, ...]) -> str:
    return max(("".join(run) for _, run in groupby(map(_literal, items), key=bool)), key=len, default="")


# Reading a pattern.


@dataclass(slots=True)
class _Capture:
    opened_at: int
    state: str = "open"  # then "closed"; or "position" from the start
    slot: int | None = None  # given by the first back reference


@dataclass(slots=True)
class _Parser:
    """Parser that reads a pattern from left to right, exactly as Lua 5.1 does, including its oddities in sets."""

    pattern: str
    at: int = 0
    slots: int = 0
    captures: list[_Capture] = field(default_factory=list)
    parts: list[_Item | tuple[Callable[[int], _Item], _Capture]] = field(default_factory=list)
    classes: dict[_Ranges, _CharClass] = field(default_factory=dict)

    def program(self) -> _Program:
        if "\0" in self.pattern:
            self._fail("NUL character; write %z", self.pattern.index("\0"))
        at_start = self._skip("^")
        while self.at < len(self.pattern) and not self._at_final_dollar():
            self._item()
        self._check_closed()
        return _Program(self._items(), at_start, self.at < len(self.pattern), self.slots)

    def _at_final_dollar(self) -> bool:
        return self.at == len(self.pattern) - 1 and self.pattern[self.at] == "$"

    def _item(self) -> None:
        for length in (2, 1):
            read = _ITEM_READERS.get(self.pattern[self.at : self.at + length])
            if read is not None:
                read(self)
                return
        self._chars()

    def _items(self) -> tuple[_Item, ...]:
        """Return the parsed items, with the starts and ends of only those captures that a back reference needs."""
        items: list[_Item] = []
        for part in self.parts:
            if isinstance(part, _Item):
                items.append(part)
            elif part[1].slot is not None:
                items.append(part[0](part[1].slot))
        return tuple(items)

    def _chars(self) -> None:
        chars = self._class(self._ranges())
        repeat = _QUANTIFIERS.get(self.pattern[self.at : self.at + 1])
        if repeat is None:
            self.parts.append(_Chars(chars))
        else:
            self.at += 1
            self.parts.append(_Chars(chars, repeat))

    def _class(self, ranges: _Ranges) -> _CharClass:
        return self.classes.setdefault(ranges, _CharClass(ranges))

    def _ranges(self) -> _Ranges:
        if self._skip("["):
            return self._set()
        if self._skip("%"):
            return _escaped(self._take("character after %"))
        char = self._take("character")
        return _ANY if char == "." else _just(char)

    def _set(self) -> _Ranges:
        opened_at = self.at - 1
        negated = self._skip("^")
        end = self._set_end(opened_at)
        ranges = tuple(self._set_ranges(end))
        self.at = end + 1
        return _complement(ranges) if negated else ranges

    def _set_end(self, opened_at: int) -> int:
        """Return the position of the `]` that closes the set: never its first character, never an escaped one."""
        end = self.at
        while end == self.at or self.pattern[end : end + 1] != "]":
            if end >= len(self.pattern):
                self._fail("missing ] for [", opened_at)
            end += 2 if self.pattern[end] == "%" and end + 1 < len(self.pattern) else 1
        return end

    def _set_ranges(self, end: int) -> Iterator[tuple[int, int]]:
        pattern = self.pattern
        at = self.at
        while at < end:
            if pattern[at] == "%":
                yield from _escaped(pattern[at + 1])
                at += 2
            elif pattern[at + 1] == "-" and at + 2 < end:
                yield ord(pattern[at]), ord(pattern[at + 2])
                at += 3
            else:
                yield from _just(pattern[at])
                at += 1

    def _position_capture(self) -> None:
        self._new_capture("position")
        self.at += 2

    def _open_capture(self) -> None:
        self.parts.append((_Open, self._new_capture("open")))
        self.at += 1

    def _new_capture(self, state: str) -> _Capture:
        if len(self.captures) == CAPTURES_MAX:
            self._fail(f"more than {CAPTURES_MAX} captures", self.at)
        self.captures.append(_Capture(self.at, state))
        return self.captures[-1]

    def _close_capture(self) -> None:
        capture = next((each for each in reversed(self.captures) if each.state == "open"), None)
        if capture is None:
            self._fail(") without (", self.at)
        capture.state = "closed"
        self.parts.append((_Close, capture))
        self.at += 1

    def _check_closed(self) -> None:
        for capture in self.captures:
            if capture.state == "open":
                self._fail("missing ) for (", capture.opened_at)

    def _back_reference(self) -> None:
        number = int(self.pattern[self.at + 1])
        capture = self.captures[number - 1] if 0 < number <= len(self.captures) else None
        if capture is None or capture.state == "open":
            self._fail(f"%{number} without a finished capture {number}", self.at)
        self.at += 2
        self.parts.append(self._repetition(capture))

    def _repetition(self, capture: _Capture) -> _Item:
        if capture.state == "position":
            return _Chars(self._class(()))  # a position is not text, so Lua never matches it
        if capture.slot is None:
            capture.slot = self.slots
            self.slots += 1
        return _Back(capture.slot)

    def _balanced(self) -> None:
        self.at += 2
        self.parts.append(_Balanced(self._take("two characters after %b"), self._take("two characters after %b")))

    def _frontier(self) -> None:
        self.at += 2
        if not self._skip("["):
            self._fail("missing [ after %f", self.at)
        self.parts.append(_Frontier(self._class(self._set())))

    def _skip(self, char: str) -> bool:
        found = self.pattern.startswith(char, self.at)
        self.at += found
        return found

    def _take(self, wanted: str) -> str:
        if self.at == len(self.pattern):
            self._fail(f"missing {wanted}", self.at)
        self.at += 1
        return self.pattern[self.at - 1]

    def _fail(self, what: str, at: int) -> NoReturn:
        raise ValueError(f"malformed Lua pattern {self.pattern!r}: {what} at character {at + 1}")


_ITEM_READERS: Final[Mapping[str, Callable[[_Parser], None]]] = {
    "()": _Parser._position_capture,
    "(": _Parser._open_capture,
    ")": _Parser._close_capture,
    "%b": _Parser._balanced,
    "%f": _Parser._frontier,
    **{f"%{digit}": _Parser._back_reference for digit in range(10)},
}
