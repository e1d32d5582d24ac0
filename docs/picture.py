"""Draws docs/watching.svg: a bus being watched, as it really looked.

python docs/picture.py

It runs `jet demo` without Spark, then `jet top` and `jet watch` in terminals beside it, and turns what they printed,
colours included, into a picture. Nothing in it is drawn by hand.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).with_name("watching.svg")
JET = str(Path(sys.executable).with_name("jet"))
COLUMNS, LINES = 92, 40
DEMO = ["demo", "--headless", "--no-spark", "--for", "60s"]
SHOWN = (
    ["top", "plant/**", "--rows", "9", "--for", "4s"],
    ["watch", "plant/pump/2/**", "--count", "12"],
)
# Rich's own form loads its fonts from the network, which a page should not, and lets some viewers swallow blanks.
FORM = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"
 xml:space="preserve">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def in_terminal(words: list[str], url: str) -> str:
    """What a command prints in a terminal, with all that the terminal obeys."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "JET_URL": url, "TERM": "xterm-256color"}
    process = subprocess.Popen([JET, *words], stdin=inside, stdout=inside, stderr=inside, env=environment)  # noqa: S603
    os.close(inside)
    printed = b""
    try:
        while data := os.read(outside, 65536):
            printed += data
    except OSError:
        pass  # the last one has closed the terminal
    os.close(outside)
    if process.wait() != 0:
        sys.exit(f"jet {' '.join(words)} ended with {process.returncode}: {printed.decode(errors='replace')}")
    return printed.decode()


def last_screen(printed: str) -> str:
    """The last screen with something on it: a live one begins anew at the upper left corner."""
    screen = [one for one in printed.split("\x1b[H") if "plant/" in one][-1].split("\x1b[?1049l")[0]
    kept = re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", screen)  # colours stay
    return kept.replace("\r", "").rstrip()


def running_demo() -> tuple[subprocess.Popen[str], str]:
    """The demo, and where its daemon listens."""
    process = subprocess.Popen([JET, *DEMO], stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    first = process.stdout.readline()
    found = re.search(r"jetb?://[^\s;]+", first)
    if not found:
        sys.exit(f"the demo did not say where it listens: {first}")
    return process, found[0]


def draw(screens: list[tuple[str, str]]) -> str:
    """The picture of some commands and what they printed."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for command, screen in screens:
        console.print(Text(f"$ {command}", style="bold green"))
        console.print(Text.from_ansi(screen), no_wrap=True, crop=True)
        console.print()
    return console.export_svg(title="a bus being watched", theme=MONOKAI, code_format=FORM, unique_id="jet")


def main() -> None:
    demo, url = running_demo()
    try:
        screens = [
            (shown(words), last_screen(in_terminal(words, url)).replace(url, "jet://localhost")) for words in SHOWN
        ]
    finally:
        demo.terminate()
        demo.communicate()
    PICTURE.write_text(draw(screens), encoding="utf-8")


def shown(words: list[str]) -> str:
    return " ".join(["jet", *(f"'{word}'" if "*" in word else word for word in words)])


if __name__ == "__main__":
    main()
