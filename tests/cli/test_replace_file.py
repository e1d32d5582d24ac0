"""Files that commands write are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.cli.output import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    """The new file takes the place of the old one at the end, with the mode that is asked for."""
    target = tmp_path / "a.json"
    target.write_text("old")
    with replace_file(target, 0o640) as fresh:
        fresh.write_text("new")
        assert target.read_text() == "old"
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """Whatever is in the way leaves the old file as it is, and nothing beside it."""
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(FileExistsError), replace_file(target, 0o600) as fresh:
        fresh.mkdir()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
