"""Run the notebooks of this folder and write what their cells show into them; Jupyter is not needed for that.

    python examples/notebooks.py                              all of them
    python examples/notebooks.py examples/live.ipynb          one of them

In Jupyter, open them in this folder: they import ``Chart`` from here, which draws curves as SVG without any library.
Any other library for charts does as well, since what jetbus returns are Arrow tables and pandas frames.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700")


class Chart:
    """A picture of curves: a title, two axes with units, and a name for each curve."""

    width, height, left, top, right, bottom = 640, 320, 70, 40, 20, 50

    def __init__(self, title: str, x: str, y: str) -> None:
        self.title, self.x, self.y = title, x, y
        self._curves: list[tuple[str, list[float], list[float]]] = []

    def line(self, name: str, xs: Sequence[float], ys: Sequence[float]) -> Chart:
        """Add a curve and return the chart."""
        self._curves.append((name, [float(x) for x in xs], [float(y) for y in ys]))
        return self

    def _repr_svg_(self) -> str:
        """Return the picture; Jupyter calls it to show the chart."""
        x_range = _widen([x for _, xs, _ in self._curves for x in xs])
        y_range = _widen([y for _, _, ys in self._curves for y in ys])
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>',
            _text(self.width / 2, 20, self.title, size=15),
            _text(self.width / 2, self.height - 10, self.x),
            _text(16, self.height / 2, self.y, turned=True),
            *self._draw_axes(x_range, y_range),
        ]
        for number, (name, xs, ys) in enumerate(self._curves):
            color = COLORS[number % len(COLORS)]
            points = " ".join(
                f"{self._across(x, x_range):.1f},{self._up(y, y_range):.1f}" for x, y in zip(xs, ys, strict=True)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
            parts.append(_text(self.left + 10 + 120 * number, self.top - 6, name, color=color, anchor="start"))
        return "\n".join([*parts, "</svg>"])

    def _across(self, x: float, x_range: tuple[float, float]) -> float:
        share = (x - x_range[0]) / (x_range[1] - x_range[0])
        return self.left + share * (self.width - self.left - self.right)

    def _up(self, y: float, y_range: tuple[float, float]) -> float:
        share = (y - y_range[0]) / (y_range[1] - y_range[0])
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def _draw_axes(self, x_range: tuple[float, float], y_range: tuple[float, float]) -> Iterator[str]:
        floor = self.height - self.bottom
        yield f'<path d="M{self.left},{self.top}V{floor}H{self.width - self.right}" fill="none" stroke="#57606a"/>'
        for x in _ticks(*x_range):
            at = self._across(x, x_range)
            yield f'<path d="M{at:.1f},{floor}v5" stroke="#57606a"/>' + _text(at, floor + 18, f"{x:g}")
        for y in _ticks(*y_range):
            at = self._up(y, y_range)
            yield f'<path d="M{self.left},{at:.1f}h-5" stroke="#57606a"/>'
            yield f'<path d="M{self.left},{at:.1f}H{self.width - self.right}" stroke="#d0d7de" stroke-width="0.5"/>'
            yield _text(self.left - 8, at + 4, f"{y:g}", anchor="end")


def _widen(values: list[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    """Return some five round numbers of a range."""
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(step * number, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    color: str = "#1f2328",
    anchor: str = "middle",
    turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"{turn}'
    return f'<text {place} font-size="{size}" fill="{color}">{escape(text)}</text>'


# -- running


def run_notebook(file: Path) -> dict[str, Any]:
    """Run the cells of a notebook in their order and return it with what they show."""
    notebook: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _run_cell("".join(cell["source"]), names, f"{file.name}, cell {count}", count)
    return notebook


def _run_cell(source: str, names: dict[str, Any], where: str, count: int) -> list[dict[str, Any]]:
    """Run a cell; its last line, if it is an expression, is shown."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)  # noqa: S102 - a notebook of this folder
        shown = None
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if shown is not None:
        result = {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _describe(shown)}
        outputs.append(result)
    return outputs


def _describe(shown: Any) -> dict[str, Any]:
    """Return a value in the forms that a notebook can show."""
    forms = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}
    found = {mime: getattr(shown, method)() for mime, method in forms.items() if hasattr(shown, method)}
    data = {mime: text.splitlines(keepends=True) for mime, text in found.items() if text is not None}
    return {**data, "text/plain": f"{shown!r}".splitlines(keepends=True) if not data else [type(shown).__name__]}


def main() -> None:
    """Run notebooks and write what they show into them."""
    files = [Path(word).resolve() for word in sys.argv[1:]] or sorted(HERE.glob("*.ipynb"))
    sys.path.insert(0, str(HERE))
    for file in files:
        os.chdir(HERE)
        notebook = run_notebook(file)
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{file.name}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    main()
