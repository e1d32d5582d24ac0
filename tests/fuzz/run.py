"""Coverage-guided fuzzing with atheris: `make fuzz SECONDS=60`, or one target for as long as you like.

    .venv/bin/python tests/fuzz/run.py                      # every target for a minute
    .venv/bin/python tests/fuzz/run.py rules --seconds 600

Without a target, the compiled lane is first built with AddressSanitizer and UBSan, and its tests run on that build.

An input that fails is kept as build/fuzz/TARGET/crash-..., and the exit code is 1. Mend the cause and move the input to
tests/fuzz/corpus/TARGET, where the tests find it. New inputs that reach new code are kept in build/fuzz/TARGET/corpus.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
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


def sanitize() -> bool:
    """Test the lane with AddressSanitizer and UBSan, its corpus included; return True if nothing is found."""
    sources, place = ROOT / "src", ROOT / "build" / "fuzz" / "sanitized"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sources, place, ignore=shutil.ignore_patterns("*.so", "__pycache__", "static"))
    wire = place / "jetbus" / "wire"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1", "-fPIC", "-shared"]
    include, compiler = sysconfig.get_path("include"), shutil.which("cc") or "cc"
    subprocess.run(
        [compiler, *flags, f"-I{include}", str(wire / "_lane.c"), "-o", str(wire / "_lane.abi3.so")], check=True
    )
    library = subprocess.check_output([compiler, "-print-file-name=libasan.so"], text=True).strip()
    # Python itself is not built for leak detection; tests count references instead.
    options = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "LD_PRELOAD": library}
    tests = ["tests/bus/test_lane.py", "tests/wire/test_intake.py", "tests/fuzz/test_targets.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", *tests]
    # Other extensions are not sanitized; what they raise would pass through another runtime of C++.
    command += ["-k", "not patterns and not journals and not memory and not nothing_is_kept"]
    environment = os.environ | options | {"PYTHONPATH": str(place)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


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
    if not given.targets:
        print("== the lane, sanitized", flush=True)
        failed += [] if sanitize() else ["sanitized"]
    for name in given.targets or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, __file__, "--here", "--seconds", str(given.seconds), name]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"fuzz: {', '.join(failed)} FAILED, see build/fuzz" if failed else "fuzz: nothing found")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
