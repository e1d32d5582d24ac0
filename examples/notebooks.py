"""Run the notebooks of this folder and write what their cells show into them; Jupyter is not needed for that.

    python examples/notebooks.py                              all of them
    python examples/notebooks.py examples/live.ipynb          one of them

Each notebook also works alone, in Jupyter. Figures of matplotlib are stored as SVG with their texts as text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

mpl.use("agg")  # plt.show() opens no window
HERE = Path(__file__).parent


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
    plt.close("all")
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
    outputs += [_display(figure) for figure in map(plt.figure, plt.get_fignums())]
    if shown is not None:
        result = {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _describe(shown)}
        outputs.append(result)
    return outputs


def _describe(shown: Any) -> dict[str, Any]:
    """Return a value in the forms that a notebook can show."""
    html = shown._repr_html_() if hasattr(shown, "_repr_html_") else None
    if html is None:
        return {"text/plain": f"{shown!r}".splitlines(keepends=True)}
    return {"text/html": html.splitlines(keepends=True), "text/plain": [type(shown).__name__]}


def _display(figure: Figure) -> dict[str, Any]:
    """Return a figure as the output of the cell that drew it."""
    drawn = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "notebook"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    data = {"image/svg+xml": drawn.getvalue().splitlines(keepends=True), "text/plain": ["Figure"]}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def main() -> None:
    """Run notebooks and write what they show into them."""
    files = [Path(word).resolve() for word in sys.argv[1:]] or sorted(HERE.glob("*.ipynb"))
    for file in files:
        os.chdir(HERE)
        notebook = run_notebook(file)
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{file.name}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    main()
