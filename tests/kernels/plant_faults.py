"""Plant the faults of ``faults.toml``; their tests must fail. Words choose among them.

Each fault is written into a copy of the package and the tests, so nothing here changes. Exit
status 1: some fault was not seen, or its text is not where it was.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copied(folder: Path) -> None:
    """Copy the package and the kernels' tests to ``folder``."""
    built = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "python", folder / "python", ignore=built)
    shutil.copytree(ROOT / "tests" / "kernels", folder / "tests" / "kernels", ignore=built)
    shutil.copytree(ROOT / "benches" / "kernels", folder / "benches" / "kernels", ignore=built)


def is_seen(folder: Path, tests: str) -> bool:
    """Return whether some test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-c", os.devnull, "--rootdir", "."]
    command += ["-p", "no:cacheprovider", "--confcutdir=tests/kernels"]
    command += [f"tests/kernels/{name}" for name in tests.split()]
    environment = os.environ | {"PYTHONPATH": "python", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.returncode == 1


def main() -> int:
    """Plant each fault and say which were not seen."""
    only = sys.argv[1:]
    faults = tomllib.loads(Path(__file__).with_name("faults.toml").read_text())["fault"]
    faults = [it for it in faults if not only or any(word in it["what"] for word in only)]
    unseen = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for fault in faults:
            what = fault["what"]
            path = folder / "python" / "hybrid_blocks" / "kernels" / fault["file"]
            text = path.read_text()
            if text.count(fault["old"]) != 1:
                unseen.append(f"{what}: its text is there {text.count(fault['old'])} times")
                continue
            path.write_text(text.replace(fault["old"], fault["new"]))
            if not is_seen(folder, fault["tests"]):
                unseen.append(what)
            path.write_text(text)
            print("missed:" if what in unseen else "seen:", what, flush=True)
    print(f"{len(faults) - len(unseen)} of {len(faults)} faults were seen", *unseen, sep="\n")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
