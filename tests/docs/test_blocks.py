"""Every fenced block of every page is run by some test; which one, its fence says.

The languages of fences are those of `support.docs`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from cli.test_examples import LINES as RUN_LINES
from cli.test_examples import lines as lines_of_cli
from cli.test_spark import EXAMPLES as SPARK_LINES
from support.daemon import Daemon
from support.docs import DEADLINE_S, DOCS, PAGES, ROOT, Block, Reader, blocks_of, without_blocks

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
FOLLOWED = {
    DOCS / name
    for name in ("alarms.md", "connect.md", "daemon.md", "howto/record.md", "howto/secure.md", "howto/service.md")
}
"""Pages that are read from top to bottom here."""
WITH_SPARK = {
    DOCS / name for name in ("spark.md", "spark-reference.md", "tutorial.md", "howto/alarm.md", "howto/stage.md")
}
"""Those that also use Spark: test_spark_pages.py reads them."""
PYTHON = {
    "README.md": "docs/test_spark_pages.py",
    "docs/bridge.md": "bridge/test_page.py",
    "docs/describe.md": "test_peer_docs.py",
    "docs/history.md": "test_history_docs.py",
    "docs/history-reference.md": "test_history_docs.py",
    "docs/howto/buffer.md": "test_history_docs.py",
    "docs/howto/notebook.md": "test_history_docs.py",
    "docs/howto/resample.md": "test_history_docs.py",
    "docs/peers.md": "test_peer_docs.py",
    "docs/peers-reference.md": "test_peer_docs.py",
    "docs/rules.md": "test_peer_docs.py",
}
"""Which test runs the plain Python blocks of other pages."""
SHELL = {
    "CONTRIBUTING.md": "test_contributing.py",
    "README.md": "docs/test_shell.py",
    "docs/cli.md": "cli/test_examples.py",
    **{f"docs/cli/{page.name}": "cli/test_examples.py" for page in (DOCS / "cli").glob("*.md")},
    "docs/cluster.md": "spark/test_cluster.py",
    "docs/demo.md": "docs/test_shell.py",
    "docs/history.md": "docs/test_shell.py",
    "docs/howto/node-jet.md": "docs/test_shell.py",
    "docs/peers.md": "docs/test_shell.py",
    "docs/sizing.md": "docs/test_spark_pages.py",
    "docs/howto/alarm.md": "docs/test_spark_pages.py",
    "docs/spark.md": "docs/test_spark_pages.py",
    "docs/spark-reference.md": "docs/test_spark_pages.py",
    "docs/tutorial.md": "docs/test_shell.py",
}
"""Which test types the plain shell of a page, all of it."""
TEXTS = {"docs/rules.md": "test_peer_docs.py"}
"""Which test reads the blocks of text: a grammar."""


def name_of(block: Block) -> str:
    return str(block.page.relative_to(ROOT))


def is_followed(block: Block) -> bool:
    return block.page in FOLLOWED | WITH_SPARK


def is_in_pair(block: Block) -> bool:
    return block.language in ("python", "js") and block.word in ("own", "watch", "socket")


RUN: dict[str, Callable[[Block], bool]] = {
    "followed": lambda block: is_followed(block) and (block.is_file or block.language in ("python", "console")),
    "run here": lambda block: block.word == "run" and block.language in ("python", "sh"),
    "typed": lambda block: block.is_shell and name_of(block) in SHELL,
    "used by docs/test_data.py": lambda block: (block.language, block.word) in (("json", ""), ("toml", "")),
    "run in pairs by docs/test_pairs.py": is_in_pair,
    "run by another test": lambda block: (block.language, block.word) == ("python", "") and name_of(block) in PYTHON,
    "walked by test_contributing.py": lambda block: block.page == ROOT / "CONTRIBUTING.md",
    "compared by another test": lambda block: block.language == "text" and name_of(block) in TEXTS,
    "exchanged by binary/test_spec.py": lambda block: block.language == "" and block.page.name == "binary-protocol.md",
    "given to the cluster of spark/test_cluster.py": lambda block: block.word == "spark-defaults.conf",
}
"""What can become of a block."""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_every_block_is_run_by_a_test(block: Block) -> None:
    """A block has a fence that some test knows; write one of those in support/docs.py."""
    assert [how for how, holds in RUN.items() if holds(block)], f"```{block.language} {block.word}"


@pytest.mark.parametrize("fence", ["sh", "sh later", "json told", "ini", "text", "python", "python later", ""])
def test_what_nothing_runs_is_found(fence: str) -> None:
    """On a page that no test knows, a block that would only be looked at is an error."""
    language, _, word = fence.partition(" ")
    with pytest.raises(AssertionError):
        test_every_block_is_run_by_a_test(Block(DOCS / "faq.md", 1, language, word, "", ""))


def test_the_other_tests_are_there() -> None:
    """The tests that are said to run blocks exist."""
    named = {*PYTHON.values(), *SHELL.values(), *TEXTS.values(), *re.findall(r"\S+\.py", " ".join(RUN))}
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_every_line_of_the_command_pages_is_run() -> None:
    """Tests of the command run the lines of cli.md and of the page of each command, those of Spark in one Spark."""
    assert set(lines_of_cli()) - {*RUN_LINES, *SPARK_LINES} == set()


def indented_code(text: str) -> list[str]:
    """Paragraphs that begin with four blanks and do not go on with a list."""
    parts = re.split(r"\n\s*\n", text)
    return [
        now
        for before, now in pairwise(parts)
        if re.match(r" {4}\S", now) and not re.match(r" *(?:[-*]|\d+\.) ", before)
    ]


def test_blocks_have_fences() -> None:
    """Code stands between fences, so that it says what becomes of it."""
    assert [page for page in PAGES if indented_code(without_blocks(page))] == []


# -- pages that are followed


def follow(page: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(folder, capsys, monkeypatch) as reader:
        reader.follow(page)


@pytest.mark.parametrize("page", sorted(FOLLOWED), ids=lambda page: page.stem)
def test_pages_are_followed(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a page, done from top to bottom, show what the page shows."""
    follow(page, tmp_path, capsys, monkeypatch)


def test_a_page_that_lies_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console that shows another output, a command that fails and a print that differs are found."""
    page = tmp_path / "page.md"
    for lie in ("```console\n$ echo one\ntwo\n```\n", "```console\n$ false\n```\n", "```python\nprint(1)  # 2\n```\n"):
        page.write_text(lie)
        monkeypatch.setattr("support.docs.ROOT", tmp_path)
        with pytest.raises(AssertionError):
            follow(page, tmp_path, capsys, monkeypatch)


# -- blocks that run by themselves


def at(daemon: Daemon, text: str) -> str:
    """The text with the usual ports replaced by those of a daemon."""
    tcp, ws = (str(daemon.address(kind)[1]) for kind in ("tcp", "ws"))
    text = text.replace("localhost:11122", f"127.0.0.1:{tcp}").replace("localhost:11123", f"127.0.0.1:{ws}")
    return text.replace('("localhost", 11122)', f'("127.0.0.1", {tcp})')


ALONE = [block for block in BLOCKS if block.word == "run"]


@pytest.mark.parametrize("block", ALONE, ids=lambda block: f"{block.where} {block.language}")
def test_blocks_run(block: Block, daemon: Daemon, tmp_path: Path) -> None:
    """A block that is marked to be run ends with success."""
    command = {"python": [sys.executable, "-c"], "sh": ["sh", "-eu", "-c"]}[block.language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [*command, at(daemon, block.text)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_some_blocks_run() -> None:
    """There are blocks to run, so that the test above cannot pass by finding none."""
    assert {block.language for block in ALONE} == {"python", "sh"}
