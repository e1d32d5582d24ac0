"""Runs the Python blocks of a page, in order, and compares what they print with what their comments say.

A comment behind a `print` is what it prints. A print in a loop has what all its rounds print in the comment lines
right after the loop.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
DEADLINE_S = 30.0

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PRINTED = re.compile(r"^ *(?:print\(.*\)  )?# (.*)$", re.MULTILINE)


def run_block(block: str, names: dict[str, Any]) -> None:
    """Run a block as if typed into a module, or into `python -m asyncio` if it awaits."""
    code = compile(block, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    awaited = eval(code, names)  # noqa: S307 - our own page
    if code.co_flags & inspect.CO_COROUTINE:

        async def limited() -> None:
            await asyncio.wait_for(awaited, DEADLINE_S)

        asyncio.run(limited())


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page runs, in order, and prints what its comments say."""
    blocks = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(blocks) > 3
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        run_block(block, names)
        assert capsys.readouterr().out.splitlines() == _PRINTED.findall(block), block
