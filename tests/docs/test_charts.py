"""Charts are drawn from the measured tables of the pages, and have axes, units and titles."""

from __future__ import annotations

import runpy
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from support.docs import DOCS

CHARTS = runpy.run_path(str(DOCS / "charts.py"))


@pytest.mark.parametrize("chart", CHARTS["CHARTS"], ids=lambda chart: chart.picture)
def test_charts_have_what_was_measured(chart: Any) -> None:
    """A chart has a title, an axis with its unit, a name for each row, and every figure of its table."""
    groups = CHARTS["read_groups"](chart)
    picture = Xml.fromstring(CHARTS["draw"](chart))  # noqa: S314 - our own text
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == chart.title
    assert f"{chart.unit}, logarithmic" in texts
    figures = [figure for group in groups for figure in group.figures.values()]
    assert len(groups) >= 4
    for group in groups:
        assert group.name in texts
    for figure in figures:
        assert CHARTS["format_figure"](figure) in texts


@pytest.mark.parametrize("chart", CHARTS["CHARTS"], ids=lambda chart: chart.picture)
def test_charts_are_drawn(chart: Any) -> None:
    """The picture on the page is the one that is drawn from the table now; if not: make charts."""
    assert (DOCS / chart.picture).read_text(encoding="utf-8") == CHARTS["draw"](chart)


def test_bars_have_the_length_of_their_figures() -> None:
    """Ten times as much is one step of the axis further, whatever the figure."""
    chart = CHARTS["CHARTS"][0]
    picture = Xml.fromstring(CHARTS["draw"](chart))  # noqa: S314 - our own text
    figures = [figure for group in CHARTS["read_groups"](chart) for figure in group.figures.values()]
    rects = [
        rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if rect.get("x") == str(CHARTS["LABELS"])
    ]
    widths = [float(rect.get("width") or 0) for rect in rects]
    assert [sorted(figures).index(figure) for figure in figures] == [sorted(widths).index(width) for width in widths]


@pytest.mark.parametrize(("cell", "figure"), [("968 k", 968e3), ("1.03 M", 1.03e6), ("3,955,409", 3955409), ("", None)])
def test_figures_of_cells(cell: str, figure: float | None) -> None:
    """Figures are read as the tables have them."""
    assert CHARTS["read_figure"](cell) == figure
