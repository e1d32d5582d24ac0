"""The site is built from the pages by one command, and everything that is odd about them is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.docs import DOCS, PAGES, ROOT

DEADLINE_S = 240.0


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does, in other folders."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^docs:.*\n\t\$\(BIN\)/sphinx-build (.*) docs (\S+)$", makefile, re.MULTILINE)
    assert found, "the Makefile has no target docs that calls sphinx-build"
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *found[1].split(), str(pages), str(site)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_site_is_built(tmp_path: Path) -> None:
    """Every page becomes a page of the site, without a warning, and can be found from the front page."""
    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        if page.is_relative_to(DOCS) and page.stem != "index":
            name = page.relative_to(DOCS).with_suffix("")
            assert (tmp_path / name / "index.html").is_file()
            assert f'href="{name}/"' in front
    assert "data:image" not in front
    assert list(tmp_path.rglob("watching.svg"))


def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    """A link to a page or a heading that is not there ends the building with an error that names it."""
    pages = tmp_path / "pages"
    pages.mkdir()
    shutil.copy(DOCS / "conf.py", pages)
    (pages / "other.md").write_text("# Other\n")
    (pages / "index.md").write_text("# Front\n\n## All\n\n- [other](other.md)\n- [b](other.md#nowhere) [c](no.md)\n")
    done = build(pages, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere" in done.stderr
    assert "no.md" in done.stderr
