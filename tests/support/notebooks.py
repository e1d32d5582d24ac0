"""Notebooks of the examples, run as Jupyter would run them, and what their cells show."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

from support.program import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run_notebook(file: Path) -> list[str]:
    """Run the cells of a notebook in an empty folder, as after a download of it alone; return what they show."""
    runner = runpy.run_path(str(EXAMPLES / "notebooks.py"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        notebook: dict[str, Any] = runner["run_notebook"](file)
    return _show(notebook)


def read_notebook(file: Path) -> list[str]:
    """Return what the cells of a notebook have shown when it was stored."""
    return _show(json.loads(file.read_text(encoding="utf-8")))


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
    """Return the texts of a picture that are not numbers: its axes, its title and the names of its curves."""
    return [text for text in re.findall(r">([^<]+)</text>", svg) if not re.fullmatch(r"[−-]?[\d.e+-]+", text)]
