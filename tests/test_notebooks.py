"""The notebooks of the examples: their cells run in order, and what they show is stored in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.notebooks import NOTEBOOKS, read_notebook, run_notebook
from support.program import EXAMPLES

WITH_SPARK = {"tables"}
"""Notebooks that the tests of Spark run."""


@pytest.mark.parametrize(
    "file", [file for file in NOTEBOOKS if file.stem not in WITH_SPARK], ids=lambda file: str(file.stem)
)
def test_notebook_runs(file: Path) -> None:
    """Every cell runs, and shows the same kinds of things that are stored in the notebook."""
    assert run_notebook(file) == read_notebook(file)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: str(file.stem))
def test_pictures_have_titles_and_units(file: Path) -> None:
    """Every notebook has a picture with a title, and with a unit on both axes."""
    pictures = [shown for shown in read_notebook(file) if shown.startswith("picture")]
    assert pictures
    for picture in pictures:
        across, up, title, *curves = ast.literal_eval(picture.removeprefix("picture: "))
        assert title
        assert curves
        assert all(re.search(r"\(.+\)$", axis) for axis in (across, up)), (across, up)


def test_notebooks_are_on_the_page() -> None:
    """The page of the examples has every notebook."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {file.name for file in NOTEBOOKS} == set(re.findall(r"\[(\w+\.ipynb)\]", page))
