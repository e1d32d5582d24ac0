"""Every wire transcript of tests/transcripts, replayed against a real daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.daemon import Daemon
from support.transcript import Player, Section, read

FILES = sorted((Path(__file__).parents[1] / "transcripts").glob("*.txt"))
CASES = [
    pytest.param(section, transport, id=f"{file.stem}: {section.title}{f' ({transport})' * bool(transport)}")
    for file in FILES
    for section in read(file)
    for transport in section.transports
]


@pytest.mark.parametrize(("section", "transport"), CASES)
def test_transcript(section: Section, transport: str, shared_daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """The daemon answers a recorded exchange frame by frame and leaves nothing behind."""
    if section.users is None:
        _replay(section, transport, shared_daemons(*section.options))
        return
    users = tmp_path / "users.json"
    users.write_text(section.users, encoding="utf-8")
    with Daemon.start("--users", str(users), *section.options) as daemon:
        _replay(section, transport, daemon)


def _replay(section: Section, transport: str, daemon: Daemon) -> None:
    daemon.await_empty()
    Player(daemon, transport).play(section)
    daemon.await_empty()
    daemon.check()
