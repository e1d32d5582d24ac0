"""Coverage-guided fuzzing with atheris: `make fuzz SECONDS=60`, or one target for as long as you like.

    .venv/bin/python tests/fuzz/run.py                      # every target for a minute
    .venv/bin/python tests/fuzz/run.py rules --seconds 600

An input that fails is kept as build/fuzz/TARGET/crash-..., and the exit code is 1. Mend the cause and move the input to
tests/fuzz/corpus/TARGET, where the tests find it. New inputs that reach new code are kept in build/fuzz/TARGET/corpus.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = sorted(folder.name for folder in (HERE / "corpus").iterdir())


def fuzz_one(name: str, seconds: int) -> None:
    """Fuzz in this process; atheris ends it."""
    import atheris

    sys.path.insert(0, str(HERE.parent))
    with atheris.instrument_imports(include=["jetbus"]):
        from fuzz.targets import TARGETS

    folder = ROOT / "build" / "fuzz" / name
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", "-timeout=20", "-rss_limit_mb=1500"]
    options += ["-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(folder / "corpus"), str(HERE / "corpus" / name)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}; all of them if none is given"
    )
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.targets) - set(NAMES):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    if given.here:
        fuzz_one(given.targets[0], given.seconds)
    failed = []
    for name in given.targets or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, __file__, "--here", "--seconds", str(given.seconds), name]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"fuzz: {', '.join(failed)} FAILED, see build/fuzz" if failed else "fuzz: nothing found")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
