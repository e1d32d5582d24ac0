"""Locked dependencies: requirements/ has what pyproject.toml asks for, with hashes; and the audit of them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


class Pin(NamedTuple):
    """One locked package."""

    requirement: Requirement
    hashes: list[str]


def read_pins(path: Path) -> list[Pin]:
    """Return the packages of a file of requirements; other lines than packages, hashes and comments are an error."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    pins = []
    for line in text.splitlines():
        package, *hashes = line.split("--hash=")
        pins.append(Pin(Requirement(package.strip()), [each.strip() for each in hashes]))
    return pins


def asked(name: str) -> list[Requirement]:
    """Return the direct requirements that a file locks."""
    if name in PROJECT["dependency-groups"]:
        return [Requirement(each) for each in PROJECT["dependency-groups"][name]]
    extras = PROJECT["project"]["optional-dependencies"]
    wanted, found = (
        list({"bus": ["daemon", "radar"], "run": ["all"], "dev": ["dev"]}[name]),
        list(PROJECT["project"]["dependencies"]),
    )
    if name != "dev":
        found += PROJECT["dependency-groups"]["build"]
    for extra in wanted:
        for each in extras[extra]:
            if each.startswith("jetbus["):
                wanted += each.removeprefix("jetbus[").removesuffix("]").split(",")
            else:
                found.append(each)
    return [Requirement(each) for each in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_is_pinned_and_hashed(path: Path) -> None:
    """Every package has one exact version and its hashes, and no line says where to fetch it."""
    pins = read_pins(path)
    assert pins
    for pin in pins:
        assert pin.requirement.url is None
        assert re.fullmatch(r"==[^,*]+", str(pin.requirement.specifier)), pin
        assert pin.hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes), pin


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_locks_are_up_to_date(path: Path, python: str) -> None:
    """Each dependency in pyproject.toml is locked in a version that it allows; if not: make lock."""
    machine = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    machine |= {"platform_system": "Linux", "extra": ""}
    locked = {
        pin.requirement.name: next(iter(pin.requirement.specifier)).version
        for pin in read_pins(path)
        if pin.requirement.marker is None or pin.requirement.marker.evaluate(machine)
    }
    for requirement in asked(path.stem):
        assert requirement.name in locked, f"{requirement} is not in {path.name}; run make lock"
        assert requirement.specifier.contains(locked[requirement.name]), f"{requirement}: run make lock"


def test_the_locks_agree() -> None:
    """The demo and the tests run with the same versions."""
    run, dev = (
        {pin.requirement.name: str(pin.requirement.specifier) for pin in read_pins(path)}
        for path in (ROOT / "requirements" / "run.txt", ROOT / "requirements" / "dev.txt")
    )
    assert {name: pin for name, pin in dev.items() if name in run} == run


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The program behind ``make audit``."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "requirements" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CLICK = {"name": "click", "version": "8.2.0"}
PIP = {
    "clean": ({"dependencies": [CLICK | {"vulns": []}]}, "f.txt: 1 packages, no known vulnerability", 0),
    "vulnerable": (
        {"dependencies": [CLICK | {"vulns": [{"id": "PYSEC-1", "fix_versions": ["8.2.1"]}]}]},
        "f.txt: 1 known vulnerabilities\n  click 8.2.0: PYSEC-1, mended in ['8.2.1']",
        1,
    ),
    "skipped": (
        {"dependencies": [{"name": "click", "skip_reason": "not found"}]},
        "f.txt: NOT AUDITED, the service with the advisories cannot be used: 1 of 1 packages: not found",
        2,
    ),
    "offline": (None, "f.txt: NOT AUDITED, the service with the advisories cannot be used: no route", 2),
}
TOTAL = {"metadata": {"dependencies": {"total": 9}}}
NPM = {
    "clean": (TOTAL | {"vulnerabilities": {}}, "f.txt: 9 packages, no known vulnerability", 0),
    "vulnerable": (
        TOTAL | {"vulnerabilities": {"ws": {"severity": "high", "range": "<8"}}},
        "f.txt: 1 known vulnerabilities\n  ws: high, <8",
        1,
    ),
    "refused": ({"message": "405"}, "f.txt: NOT AUDITED, the service with the advisories cannot be used: 405", 2),
    "offline": (None, "f.txt: NOT AUDITED, the service with the advisories cannot be used: no route", 2),
}


@pytest.mark.parametrize(
    ("read", "case"), [*(("read_pip", each) for each in PIP), *(("read_npm", each) for each in NPM)]
)
def test_an_audit_without_an_answer_is_no_success(audit: ModuleType, read: str, case: str) -> None:
    """Vulnerable is 1, and a service that cannot be asked is 2, never 0."""
    found, text, code = {"read_pip": PIP, "read_npm": NPM}[read][case]
    outcome = getattr(audit, read)("f.txt", json.dumps(found) if found else "", "trace\nno route\n")
    assert (str(outcome), audit.verdict([outcome])) == (text, code)
