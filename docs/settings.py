"""Prints the table of all settings of `jetd` as Markdown; with `--write` puts it into daemon.md.

python docs/settings.py --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from jetbus.daemon.config import SETTINGS, Setting, shown

PAGE = Path(__file__).with_name("daemon.md")
START, END = "<!-- settings: made by docs/settings.py -->\n", "<!-- end of settings -->\n"


def table() -> str:
    """One row a setting."""
    head = ["setting", "flag", "variable", "default", "SIGHUP", "meaning"]
    return "".join(line(cells) for cells in (head, ["---"] * len(head), *map(row, SETTINGS)))


def row(setting: Setting) -> list[str]:
    default = "none" if setting.default in (None, ()) else f"`{shown(setting.default)}`"
    flag = f"`{setting.flag} {setting.metavar}`".replace("|", "\\|")
    taken_over = "yes" if setting.reload else "restart"
    return [f"`{setting.name}`", flag, f"`{setting.variable}`", default, taken_over, setting.help]


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def with_table(page: str) -> str:
    """The page with its table brought up to date."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return before + START + table() + END + after


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(table())
