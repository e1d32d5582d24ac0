"""How Sphinx builds the site from these pages: `make docs`. They are plain Markdown that also reads well without it.

Two things are made on the way: the navigation from the lists of links in index.md and the table of commands in cli.md,
so that no page needs a directive, and downloads from links to files outside this folder, such as the examples.
"""

from __future__ import annotations

import re
from typing import Any

import jetbus

project = "jetbus"
author = "the authors of jetbus"
release = version = jetbus.__version__

extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
# Sphinx has no lexer for a session of the shell that also has JSON in its output, nor for rules.
highlight_language = "none"

html_theme = "furo"
html_title = f"jetbus {release}"
html_show_copyright = False
html_copy_source = False

_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"^- \[.*?\]\(([\w/-]+)\.md\)", re.MULTILINE)


def navigation(index: str) -> str:
    """One list of pages for each section of the front page, in its order."""
    lists = []
    for caption, text in _SECTION.findall(index):
        if pages := _PAGE.findall(text):
            lists.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]))
    return "\n".join(lists)


def read(_app: Any, page: str, source: list[str]) -> None:
    """Prepare the text of a page."""
    source[0] = re.sub(r"\]\(((?:\.\./)+)(?=[A-Za-z])", lambda found: _outside(page, found), source[0])
    if page == "index":
        source[0] += "\n" + navigation(source[0])
    if page == "cli":
        commands = re.findall(r"^\| \[`jet .*?\]\((cli/[\w-]+)\.md\)", source[0], re.MULTILINE)
        source[0] += "\n" + "\n".join(["```{toctree}", ":hidden:", "", *commands, "```", ""])


def _outside(page: str, found: re.Match[str]) -> str:
    """A link that leaves this folder becomes a download; one from a folder below it stays what it is."""
    leaves = found[1].count("../") > page.count("/")
    return f"](path:{found[1]}" if leaves else found[0]


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
