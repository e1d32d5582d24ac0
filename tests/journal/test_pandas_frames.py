"""The past in pandas: types of tables, and states side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import jetbus.journal
from jetbus.journal import BadInstant, JournalError, NotRecorded, pandas_frames
from jetbus.journal.instants import US_PER_S
from support.journal_model import Event, record

BEGIN_US = 1_767_225_600 * US_PER_S
"""The first instant of 2026."""
RPM, BAR = '{"schema": {"unit": "rpm"}}', '{"schema": {"unit": "bar"}}'


def at(seconds: float, event: str, path: str | None, value: str | None = None, **more: Any) -> Event:
    kind = "state" if path else None
    return Event(BEGIN_US + round(seconds * US_PER_S), event, path, value, "a#1", kind, **more)


STORY = [
    at(0.0, "start", None),
    at(0.2, "add", "speed", "1", detail=RPM),
    at(1.5, "add", "pressure", "2.5", detail=BAR),
    at(1.6, "add", "mode", '"auto"'),
    at(1.7, "add", "open", "true"),
    at(1.8, "add", "mixed", "[1]"),
    at(2.9, "change", "speed", "3"),
    at(3.5, "change", "pressure", "4", quality="bad"),
    at(4.5, "change", "pressure", "5"),
    at(4.6, "change", "mixed", '"x"'),
    at(5.5, "remove", "mode", None),
    at(6.2, "change", "speed", "4"),
    # The daemon is killed, and comes back with one state.
    at(9.5, "start", None),
    at(9.6, "add", "speed", "5", detail=RPM),
    at(10.0, "change", "speed", "6"),
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> jetbus.journal.Journal:
    folder = tmp_path_factory.mktemp("story")
    record(folder, [[STORY]], bus="plant")
    return jetbus.journal.open(folder)


def test_resample_and_concat_keep_the_instants(journal: jetbus.journal.Journal) -> None:
    """Histories that are resampled and put side by side keep their instants, and their integers."""
    found = [journal.history(path).to_pandas().set_index("ts")["num"] for path in ("speed", "pressure")]
    assert [str(one.index.dtype) for one in found] == ["datetime64[ns, UTC]"] * 2
    assert [str(one.dtype) for one in found] == ["Int64", "float64"]
    both = pd.concat([one.resample("1s").last() for one in found], axis=1, keys=["speed", "pressure"])
    assert both.index[0] == pd.Timestamp("2026-01-01T00:00:00Z")
    assert both.index[-1] == pd.Timestamp("2026-01-01T00:00:10Z")
    assert len(both) == 11
    assert both.loc["2026-01-01T00:00:02Z", "speed"] == 3
    assert both.loc["2026-01-01T00:00:01Z", "pressure"] == 2.5
    assert str(both["speed"].dtype) == "Int64"
    for table in (journal.table(), journal.as_of(), journal.history("mode")):
        frame = table.to_pandas()
        assert str(frame["ts"].dtype) == "datetime64[ns, UTC]"
        assert str(frame["seq"].dtype) == "Int64"


def test_a_frame_holds_values(journal: jetbus.journal.Journal) -> None:
    """A column has the last value at each step, and nothing where the state did not exist or its value was bad."""
    frame = journal.frame("**")
    assert str(frame.index.dtype) == "datetime64[ns, UTC]"
    assert (frame.index.name, frame.index[0]) == ("ts", pd.Timestamp("2026-01-01T00:00:00Z"))
    assert {path: str(dtype) for path, dtype in frame.dtypes.items()} == {
        "mixed": "object",
        "mode": "string",
        "open": "boolean",
        "pressure": "float64",
        "speed": "Int64",
    }
    nothing = pd.NA
    wanted = {
        "speed": [nothing, 1, 1, 3, 3, 3, 3, nothing, nothing, nothing, 6],
        "pressure": [nothing, nothing, 2.5, 2.5, nothing, 5, 5, nothing, nothing, nothing, nothing],
        "mode": [nothing, nothing, *["auto"] * 4, *[nothing] * 5],
        "open": [nothing, nothing, *[True] * 5, *[nothing] * 4],
    }
    for path, values in wanted.items():
        assert [nothing if pd.isna(one) else one for one in frame[path]] == values, path
    assert frame["mixed"].iloc[2] == [1]
    assert frame.attrs["units"] == {"speed": "rpm", "pressure": "bar"}


def test_a_frame_begins_with_what_was_in_force(journal: jetbus.journal.Journal) -> None:
    """Values from before the range are held; steps are multiples of their length, whenever the range begins."""
    frame = journal.frame(["speed", "pressure"], since=BEGIN_US + 3_200_000, until=BEGIN_US + 6_000_000, every="500ms")
    assert list(frame.columns) == ["pressure", "speed"]
    assert frame.index[0] == pd.Timestamp("2026-01-01T00:00:03.5Z")
    assert frame.index[-1] == pd.Timestamp("2026-01-01T00:00:06Z")
    assert frame["speed"].tolist() == [3] * 6
    assert frame.equals(journal.frame(["speed", "pressure"], BEGIN_US + 3_200_000, BEGIN_US + 6_000_000, every=0.5))


def test_a_frame_of_several_buses(tmp_path: Path) -> None:
    """With several buses a column is a bus and a path, and a path need not be on all of them."""
    record(tmp_path / "north", [[STORY]], bus="north")
    record(tmp_path / "south", [[[at(0, "start", None), at(1, "add", "depth", "7")]]], bus="south")
    both = jetbus.journal.open(tmp_path / "north", tmp_path / "south")
    frame = both.frame("**")
    assert ("south", "depth") in frame.columns
    assert frame.attrs["units"]["north", "speed"] == "rpm"
    assert list(both.frame("depth").columns) == [("south", "depth")]
    with pytest.raises(NotRecorded, match="did you mean"):
        both.frame("deepth")


def test_problems_of_frames(journal: jetbus.journal.Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of nothing, one that would be too large, and one without pandas are errors that say what to do."""
    with pytest.raises(NotRecorded, match=r"nothing in the journal matches sped in that time; did you mean speed\?"):
        journal.frame(["pressure", "sped"])
    with pytest.raises(BadInstant, match="is not a duration"):
        journal.frame("speed", every="often")
    with pytest.raises(JournalError, match="must be longer than 0"):
        journal.frame("speed", every=0)
    monkeypatch.setattr(pandas_frames, "CELLS_MAX", 10)
    with pytest.raises(JournalError, match=r"would have 11 rows, more than 10 cells; give a later since"):
        journal.frame("speed")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(JournalError, match="install it with: pip install 'pandas"):
        journal.frame("speed")
