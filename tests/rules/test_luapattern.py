"""Lua patterns: tables for each construct, and a real Lua 5.1 as the judge of everything else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]

from jetbus.luapattern import CAPTURES_MAX, PATTERN_CHARS_MAX, lua_matcher

_lua = LuaRuntime()
_lua_match = cast(
    Callable[[str, str], tuple[bool, bool]],
    _lua.eval("function(s, p) local ok, found = pcall(string.match, s, p) return ok, ok and found ~= nil end"),
)


def _ours(pattern: str, path: str) -> tuple[bool, bool]:
    """(well-formed, matches), in the form of `_lua_match`."""
    try:
        matches = lua_matcher(pattern)
    except ValueError:
        return False, False
    return True, matches(path)


def _check_against_lua(pattern: str, path: str) -> None:
    """The same answer, except that Lua may not have reached what is malformed; then it has found nothing."""
    lua_ok, lua_found = _lua_match(path, pattern)
    ok, found = _ours(pattern, path)
    if ok:
        assert (lua_ok, lua_found) == (ok, found)
    else:
        assert not lua_found


MATCHES = {
    "empty pattern": ("", "", True),
    "plain text anywhere": ("b/c", "a/b/c/d", True),
    "plain text missing": ("b/d", "a/b/c/d", False),
    "plain text at the start": ("^a/b", "a/b/c", True),
    "plain text not at the start": ("^b", "a/b/c", False),
    "plain text at the end": ("/c$", "a/b/c", True),
    "plain text not at the end": ("/b$", "a/b/c", False),
    "whole path": ("^a/b$", "a/b", True),
    "more than the whole path": ("^a/b$", "a/b\n", False),
    "only the start anchor": ("^", "a", True),
    "only the end anchor": ("$", "a", True),
    "both anchors, empty path": ("^$", "", True),
    "both anchors, some path": ("^$", "a", False),
    "second ^ is literal": ("^^a", "^a", True),
    "inner ^ is literal": ("a^b", "a^b", True),
    "inner $ is literal": ("a$b", "a$b", True),
    "inner $ takes a quantifier": ("^a$*b$", "a$$b", True),
    "escaped $ at the end": ("a%$", "a$b", True),
    "dot is any character": ("^a.c$", "a\nc", True),
    "dot is one character beyond ASCII": ("^.$", "ü", True),
    "escaped dot": ("1%.5", "1x5", False),
    "escaped letter without a class": ("^%q$", "q", True),
    "letters": ("^%a+$", "abYZ", True),
    "letters are ASCII": ("%a", "ü", False),
    "not letters": ("^%A$", "ü", True),
    "not a class in ASCII only": ("%Ä", "Ä", True),
    "digits": ("^%d+$", "0129", True),
    "digits are ASCII": ("%d", "٣", False),
    "lower-case letters": ("^%l%L$", "aA", True),
    "white space": ("^%s+$", " \t\n\v\f\r", True),
    "upper-case letters": ("^%u%U$", "Aa", True),
    "letters and digits": ("^%w+%W$", "a1_", True),
    "hexadecimal digits": ("^%x+%X$", "09afAFg", True),
    "punctuation": ("^%p+%P$", "!/:@[`{~a", True),
    "control characters": ("^%c+%C$", "\x01\x1f\x7f ", True),
    "NUL": ("^a%z%Z$", "a\0b", True),
    "set": ("^[abc]+$", "cab", True),
    "set with a range": ("^[a-cx]+$", "bxa", True),
    "set with a range beyond ASCII": ("^[α-ω]+$", "λμ", True),
    "outside of a range beyond ASCII": ("[α-ω]", "Λ", False),
    "complement of a set": ("^[^a-c]+$", "xyzü", True),
    "not in the complement": ("[^a-c]", "abc", False),
    "class in a set": ("^[%d_]+$", "1_2", True),
    "complement class in a set": ("^[%D]$", "1", False),
    "] first in a set": ("^[]a]+$", "]a", True),
    "] first in a complement": ("[^]a]", "]a", False),
    "escaped ] in a set": ("^[%]a]+$", "]a", True),
    "- at the end of a set": ("^[a-]+$", "-a", True),
    "no range after a class": ("^[%a-z]+$", "Q-", True),
    "range upside down": ("[z-a]", "m", False),
    "quantifiers are literal in a set": ("^[*+?.(]+$", "(.?+*", True),
    "zero or more": ("^ab*c$", "ac", True),
    "one or more": ("^ab+c$", "ac", False),
    "as few as possible": ("^a.-c$", "abcbc", True),
    "at most one": ("^ab?c$", "abbc", False),
    "quantifier at the start is literal": ("^*a", "*a", True),
    "second quantifier is literal": ("^a**$", "aa*", True),
    "quantifier after a capture is literal": ("^(a)*$", "a*", True),
    "single ] is literal": ("^]$", "]", True),
    "balanced": ("^%b()$", "(a(b)c)", True),
    "balanced, never closed": ("%b()", "((a", False),
    "balanced inside an open one": ("^%(%b()$", "((a)", True),
    "balanced with equal ends": ("^%b''x%b''$", "'a'x'b'", True),
    "balanced shares no character": ("^%b''%b''$", "'a'b'", False),
    "quantifier after balanced is literal": ("^%b()*$", "()*", True),
    "frontier": ("%f[%a]bar", "foo bar", True),
    "no frontier": ("%f[%a]bar", "foobar", False),
    "frontier at the start": ("^%f[%a]a", "a", True),
    "frontier at the end": ("a%f[%z]$", "a", True),
    "captures": ("^(a(b)c)()$", "abc", True),
    "back reference": ("^(%a+)/%1$", "ab/ab", True),
    "back reference to other text": ("^(%a+)/%1$", "ab/ac", False),
    "back references out of order": ("^(.)(.)%2%1$", "abba", True),
    "back reference to a nested capture": ("^((.).)%2%1$", "abaab", True),
    "back reference to an empty capture": ("^(a*)b%1$", "b", True),
    "back reference to a position never matches": ("()%1", "", False),
    "everything below": ("^room/.*$", "room/", True),
    "ends around something": ("^room/%d+/temp$", "room/12/temp", True),
    "ends around nothing": ("^room/%d+/temp$", "room//temp", False),
    "ends do not overlap": ("^ab.*bc$", "abc", False),
    "ends that touch": ("^ab.*bc$", "abbc", True),
    "text in the middle": ("^a.-room.-z$", "a/room/z", True),
    "no text in the middle": ("^a.-room.-z$", "a/rom/z", False),
}


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES.values(), ids=MATCHES.keys())
def test_matches_as_documented(pattern: str, path: str, expected: bool) -> None:
    """Every construct of a Lua pattern means what the Lua manual says."""
    assert lua_matcher(pattern)(path) is expected


ASCII_MATCHES = {name: row for name, row in MATCHES.items() if "".join(map(str, row)).isascii()}


@pytest.mark.parametrize(("pattern", "path", "expected"), ASCII_MATCHES.values(), ids=ASCII_MATCHES.keys())
def test_lua_agrees_with_the_table(pattern: str, path: str, expected: bool) -> None:
    """A real Lua gives the answers of the table above."""
    assert tuple(_lua_match(path, pattern)) == (True, expected)


MALFORMED = {
    "ends with %": ("a%", "a", "missing character after % at character 3"),
    "set without end": ("a[bc", "a", "missing ] for [ at character 2"),
    "empty set": ("[]", "a", "missing ] for [ at character 1"),
    "empty complement": ("[^]", "a", "missing ] for [ at character 1"),
    "set that ends with %": ("[a%", "a", "missing ] for [ at character 1"),
    "set with its end escaped": ("[a%]", "a", "missing ] for [ at character 1"),
    "capture without end": ("(a", "a", "missing ) for ( at character 1"),
    "inner capture without end": ("(()(a)", "a", "missing ) for ( at character 1"),
    "end without capture": ("a)", "a", ") without ( at character 2"),
    "end after a position": ("())", "a", ") without ( at character 3"),
    "%b alone": ("%b", "a", "missing two characters after %b at character 3"),
    "%b with one character": ("%b(", "a", "missing two characters after %b at character 4"),
    "%f without a set": ("%fa", "a", "missing [ after %f at character 3"),
    "%f with an open set": ("%f[a", "a", "missing ] for [ at character 3"),
    "%0": ("%0", "a", "%0 without a finished capture 0 at character 1"),
    "%1 without a capture": ("%1", "a", "%1 without a finished capture 1 at character 1"),
    "%1 in its own capture": ("(a%1)", "a", "%1 without a finished capture 1 at character 3"),
    "too many captures": ("()" * (CAPTURES_MAX + 1), "a", "more than 32 captures at character 65"),
}


@pytest.mark.parametrize(("pattern", "path", "what"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_patterns_are_refused(pattern: str, path: str, what: str) -> None:
    """A malformed pattern is refused with what is wrong and where, and Lua refuses it too."""
    with pytest.raises(ValueError, match=re.escape(what)):
        lua_matcher(pattern)
    assert tuple(_lua_match(path, pattern)) == (False, False)


def test_nul_in_a_pattern_is_refused() -> None:
    """A NUL, at which Lua 5.1 would silently end the pattern, is refused."""
    with pytest.raises(ValueError, match="NUL character; write %z at character 2"):
        lua_matcher("a\0b")


def test_malformed_part_is_found_without_reaching_it() -> None:
    """A malformed pattern is refused when it is given, not when a path first reaches the malformed part."""
    assert tuple(_lua_match("b", "a%")) == (True, False)
    with pytest.raises(ValueError, match="missing character after %"):
        lua_matcher("a%")


def test_most_captures() -> None:
    """As many captures as Lua allows are accepted."""
    assert lua_matcher("()" * CAPTURES_MAX)("a")


@pytest.mark.parametrize("length", [PATTERN_CHARS_MAX, PATTERN_CHARS_MAX + 1], ids=["longest", "too long"])
def test_pattern_length_limit(length: int) -> None:
    """A pattern may have PATTERN_CHARS_MAX characters and no more."""
    pattern = "x" * length
    if length <= PATTERN_CHARS_MAX:
        assert lua_matcher(pattern)(pattern)
    else:
        with pytest.raises(ValueError, match="1001 characters is longer than 1000; shorten it"):
            lua_matcher(pattern)


SLOW_FOR_BACKTRACKING = {
    "stars": ("^" + "a*" * 400 + "[bc]", "a" * 1000, False),
    "stars that match": ("^" + "a*" * 400 + "[bc]", "a" * 1000 + "b", True),
    "optional ones": ("^" + "a?" * 400 + "a" * 190 + "%d", "a" * 1000, False),
    "any text": ("^a" + ".-" * 450 + "%d", "a" * 1000, False),
    "balanced": ("%b()%d", "(" * 5000, False),
    "captures without back references": ("^" + "(.-)" * 30 + "%d", "a" * 1000, False),
}


@pytest.mark.parametrize(
    ("pattern", "path", "expected"), SLOW_FOR_BACKTRACKING.values(), ids=SLOW_FOR_BACKTRACKING.keys()
)
def test_hard_patterns_are_answered_exactly_and_soon(pattern: str, path: str, expected: bool) -> None:
    """Patterns that take a backtracking matcher minutes or ages get the right answer at once."""
    matches = lua_matcher(pattern)
    begin = time.process_time()
    assert matches(path) is expected
    assert time.process_time() - begin < 0.5


OVER_THE_STEP_LIMIT = {
    "back references": ("(.-)(.-)(.-)(.-)%1%2%3%4$", "abcdefghijklmnopqrstuvwxyz" * 4),
    "long path": ("(.*)x%1$", "a" * 100_000 + "x" + "a" * 100_000),
    "many balanced": ("%b()" * 250, "()" * 5000),
    "many classes on a long path": (
        "^" + "".join(f"[{chr(0x100 + i)}a]*" for i in range(190)) + "b$",
        "a" * 10**6 + "b",
    ),
}


@pytest.mark.parametrize(("pattern", "path"), OVER_THE_STEP_LIMIT.values(), ids=OVER_THE_STEP_LIMIT.keys())
def test_step_limit(pattern: str, path: str) -> None:
    """A match that needs more than STEPS_MAX steps soon ends as no match, even if Lua would find one."""
    matches = lua_matcher(pattern)
    begin = time.process_time()
    assert not matches(path)
    assert time.process_time() - begin < 1


def test_matcher_starts_each_match_with_all_steps() -> None:
    """A match that ran out of steps takes nothing away from the next one."""
    matches = lua_matcher("^(.-)(.-)(.-)%1%2%3$")
    assert not matches("abcdefghijklmnopqrstuvwxyz" * 10)
    assert matches("abcabc")


# Random patterns, judged by a real Lua. Paths are short: Lua itself backtracks.

PATHS = st.text(alphabet="ab1/(]-%$^ A\0", max_size=10)
SOUP = st.text(alphabet="aab1/()[]^$%%%*+-?.zfdAb\n", max_size=12)

_CHARS = st.sampled_from(["a", "b", "/", "1", ".", "%a", "%D", "%.", "%%", "%z", "%W", "%]", "$", "]", "^"])
_SET_PARTS = st.sampled_from(["a", "b", "1", "/", "a-b", "(-1", "%a", "%D", "%]", "%%", "^", "$", "A-", "-", "+-%%"])
_SETS = st.builds(
    lambda negated, first, parts: f"[{negated}{first}{parts}]",
    st.sampled_from(["", "^"]),
    st.sampled_from(["a", "]", "%d"]),
    st.lists(_SET_PARTS, max_size=3).map("".join),
)
_REPEATED = st.builds(lambda chars, mark: chars + mark, _CHARS | _SETS, st.sampled_from(["", "*", "+", "-", "?"]))
_OTHERS = st.sampled_from(["%b()", "%bab", "%baa", "()"]) | _SETS.map(lambda each: "%f" + each)
_RUNS = st.lists(_REPEATED | _OTHERS, max_size=4).map("".join)


@st.composite
def _well_formed(draw: st.DrawFn) -> str:
    captured = draw(_RUNS)
    back = draw(st.sampled_from(["", "%1", "%2"]))
    body = f"({captured}({draw(_RUNS)}))" + draw(_RUNS) + (back if "()" not in captured else "") + draw(_RUNS)
    return draw(st.sampled_from(["", "^"])) + draw(st.just(body) | _RUNS) + draw(st.sampled_from(["", "$"]))


BACK_REFERENCES = st.lists(
    st.sampled_from(["a", "b", ".", "a*", ".-", "b?", "(.)", "(.-)", "(a*)", "((.).-)", "()", "%1", "%2", "%3"]),
    max_size=8,
)


@settings(max_examples=1000, deadline=None)
@given(parts=BACK_REFERENCES, path=st.text(alphabet="ab", max_size=12), whole=st.booleans())
def test_back_references_are_judged_as_by_lua(parts: list[str], path: str, whole: bool) -> None:
    """Patterns full of captures and back references get Lua's answer."""
    pattern = "".join(parts)
    _check_against_lua(f"^{pattern}$" if whole else pattern, path)


@settings(max_examples=1000, deadline=None)
@given(pattern=SOUP, path=PATHS)
@example(pattern="[+-%%]", path="]")
@example(pattern="%f[^a]", path="")
def test_any_pattern_is_judged_as_by_lua(pattern: str, path: str) -> None:
    """Whatever Lua accepts and matches, refuses, or does not match, gets the same answer here."""
    _check_against_lua(pattern, path)


@settings(max_examples=1000, deadline=None)
@given(pattern=_well_formed(), path=PATHS)
def test_well_formed_patterns_match_as_in_lua(pattern: str, path: str) -> None:
    """A well-formed pattern is accepted and matches exactly the paths it matches in Lua."""
    assert _ours(pattern, path) == tuple(_lua_match(path, pattern))
    assert _ours(pattern, path)[0]


@dataclass
class Counted:
    """A meter of steps."""

    units: int = 0
    steps_left: int = 1_000_000


def test_steps_of_several_matches_share_an_allowance() -> None:
    """Back references take from one allowance for many matches; once it is used up they match nothing."""
    counted = Counted(steps_left=5000)
    doubled, plain = lua_matcher("^(.-)/%1$", counted), lua_matcher("^a[a-z/]*x", counted)
    path = "a" * 30 + "/" + "a" * 30
    assert doubled(path)
    used = 5000 - counted.steps_left
    assert 0 < used <= counted.units
    matched = [doubled(path) for _ in range(5000 // used + 1)]
    assert matched[0]
    assert not matched[-1]
    assert plain("abc/x")
    assert counted.steps_left <= 0


def test_steps_without_captures_are_counted_only() -> None:
    """A pattern without back references reports its work and needs no allowance."""
    counted = Counted(steps_left=0)
    assert lua_matcher("^a[a-z]*x", counted)("abcx")
    assert counted.units > 0
    assert counted.steps_left == 0
