"""``python tests/stage.py NAME ARGS``: one pytest run of a tier; reports go to ``build/junit``.

In CI, tests that failed run once more, one after the other in a new process. CI shares its machine
with other work, and a real fault fails both times. ``summary.py`` names the tests that needed it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPORTS, CACHES = Path("build/junit"), Path("build/pytest")
TESTS_FAILED = 1  # pytest's exit status
MOST_AGAIN = 5  # more failures than this have one cause


def main(name: str, arguments: list[str]) -> int:
    """Run pytest; return its exit status, or that of the second run."""
    cache = CACHES / name
    shutil.rmtree(cache, ignore_errors=True)
    pytest = [str(Path(sys.executable).with_name("pytest")), "-o", f"cache_dir={cache.resolve()}"]
    status = subprocess.call([*pytest, f"--junitxml={REPORTS / name}.xml", *arguments])
    if status != TESTS_FAILED or not os.environ.get("CI"):
        return status
    failed = json.loads((cache / "v/cache/lastfailed").read_text())
    if len(failed) > MOST_AGAIN:
        return status
    print(f"{name}: {len(failed)} failed, and run once more: {', '.join(failed)}", flush=True)
    again = ["--last-failed", f"--junitxml={REPORTS / name}-again.xml", *arguments, "-n", "0"]
    return subprocess.call([*pytest, *again])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
