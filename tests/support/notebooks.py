"""Notebooks of the examples, run as Jupyter would run them, and what their cells show."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.program import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run_notebook(file: Path) -> list[str]:
    """Run the cells of a notebook in its folder; return what they show."""
    with contextlib.chdir(EXAMPLES), _importing_from(EXAMPLES):
        notebook: dict[str, Any] = importlib.import_module("notebooks").run_notebook(file)
    return _show(notebook)


def read_notebook(file: Path) -> list[str]:
    """Return what the cells of a notebook have shown when it was stored."""
    return _show(json.loads(file.read_text(encoding="utf-8")))


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _show(notebook: dict[str, Any]) -> list[str]:
    """Return the outputs of the cells: their kinds, and for pictures their texts."""
    shown = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if svg := output.get("data", {}).get("image/svg+xml"):
                shown.append(f"picture: {_read_titles(''.join(svg))}")
            else:
                shown.append(", ".join(output.get("data", {"printed": ""})))
    return shown


def _read_titles(svg: str) -> list[str]:
    """The texts of a picture that are no numbers: its title, its axes and the names of its curves."""
    return [text for text in re.findall(r">([^<]+)</text>", svg) if not re.fullmatch(r"-?[\d.e+-]+", text)]
