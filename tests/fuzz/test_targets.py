"""The fuzz targets over their corpus and over mutations of it, the same ones in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.targets import TARGETS, Found, match_patterns, send_frame

CORPUS = Path(__file__).parent / "corpus"
MUTATIONS = 150
CORPUS_BYTES_MAX = 64 << 10


def seeds_of(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def mutations_of(seeds: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """Cut, repeat, join and change bytes of the seeds."""
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at, count = chance.randrange(len(data) + 1), chance.randint(1, 8)
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[at : at + chance.choice([0, count])] = chance.choice(
                [b"", chance.randbytes(count), data[at : at + count] * 3, other[start : start + 4 * count]]
            )
        yield bytes(data)


def test_every_target_has_seeds() -> None:
    """There is a small corpus for each target, and none without a target."""
    assert sorted(folder.name for folder in CORPUS.iterdir()) == sorted(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < CORPUS_BYTES_MAX


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_mutations(name: str) -> None:
    """No input of the corpus, whole or mutated, makes a target fail."""
    seeds = seeds_of(name)
    for data in (b"", *seeds, *mutations_of(seeds, random.Random(name))):
        try:
            TARGETS[name](data)
        except Exception as problem:
            raise AssertionError(f"{name} fails for {data!r}") from problem


def test_a_traceback_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target fails when the daemon would write a traceback to its log, and when a reference disagrees."""
    from jetbus.bus import services

    def fail(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(services.RARE, "info", fail)
    with pytest.raises((Found, ZeroDivisionError)):
        send_frame(b'{"id":1,"method":"info","params":{}}')
    monkeypatch.setattr("fuzz.targets.lua_matcher", lambda _pattern: lambda _text: True)
    with pytest.raises(Found):
        match_patterns(b"b\na")
