"""``make audit``: known vulnerabilities of the locked packages, Python's and npm's.

Advisories come from the network. A service that cannot be reached is an outcome of its own (exit code 2), since
"nothing found" and "nobody asked" must not look alike. Vulnerable packages end with exit code 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
INTEROP = ROOT / "tests" / "interop"
CLEAN, VULNERABLE, UNREACHED = range(3)


class Audit(NamedTuple):
    """Outcome for one file of locked packages: a line per vulnerability, or the reason why there is no answer."""

    name: str
    packages: int
    vulnerable: Sequence[str]
    unreached: str = ""

    def __str__(self) -> str:
        if self.unreached:
            return f"{self.name}: NOT AUDITED, the service with the advisories cannot be used: {self.unreached}"
        if self.vulnerable:
            return "\n  ".join([f"{self.name}: {len(self.vulnerable)} known vulnerabilities", *self.vulnerable])
        return f"{self.name}: {self.packages} packages, no known vulnerability"


def read_pip(name: str, printed: str, complaints: str) -> Audit:
    """Interpret the JSON of pip-audit; a package that it skips has not been audited."""
    try:
        found: list[dict[str, Any]] = json.loads(printed)["dependencies"]
    except (ValueError, KeyError):
        return Audit(name, 0, (), _last_line(complaints))
    skipped = [package for package in found if "skip_reason" in package]
    if skipped:
        return Audit(name, 0, (), f"{len(skipped)} of {len(found)} packages: {skipped[0]['skip_reason']}")
    return Audit(
        name,
        len(found),
        [
            f"{package['name']} {package['version']}: {flaw['id']}, mended in {flaw['fix_versions'] or 'none'}"
            for package in found
            for flaw in package["vulns"]
        ],
    )


def read_npm(name: str, printed: str, complaints: str) -> Audit:
    """Interpret the JSON of npm audit."""
    try:
        found = json.loads(printed)
    except ValueError:
        return Audit(name, 0, (), _last_line(complaints))
    if "vulnerabilities" not in found:
        return Audit(name, 0, (), str(found.get("message") or found.get("error") or _last_line(complaints)))
    return Audit(
        name,
        found["metadata"]["dependencies"]["total"],
        [
            f"{package}: {flaw['severity']}, {flaw['range']}"
            for package, flaw in sorted(found["vulnerabilities"].items())
        ],
    )


def _last_line(complaints: str) -> str:
    """Shorten what a program complains about to its conclusion."""
    return next((line.strip() for line in reversed(complaints.splitlines()) if line.strip()), "no answer")


def audit_all() -> Iterator[Audit]:
    """Audit every file of locked packages."""
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner=off", "--format=json", "--disable-pip"]
        ran = subprocess.run([*command, "--requirement", str(path)], capture_output=True, text=True, check=False)  # noqa: S603
        yield read_pip(str(path.relative_to(ROOT)), ran.stdout, ran.stderr)
    command = ["npm", "audit", "--json"]
    ran = subprocess.run(command, cwd=INTEROP, capture_output=True, text=True, check=False)  # noqa: S603
    yield read_npm("tests/interop/package-lock.json", ran.stdout, ran.stderr)


def verdict(audits: Sequence[Audit]) -> int:
    """Return the exit code: vulnerabilities outweigh services that were not reached."""
    if any(audit.vulnerable for audit in audits):
        return VULNERABLE
    return UNREACHED if any(audit.unreached for audit in audits) else CLEAN


def main() -> int:
    """Print an outcome per file."""
    audits = []
    for audit in audit_all():
        print(audit, flush=True)
        audits.append(audit)
    return verdict(audits)


if __name__ == "__main__":
    sys.exit(main())
