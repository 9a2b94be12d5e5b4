"""Debug builds that tests run; `make debug-builds` makes them before pytest begins."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def debug_build(name: str) -> Path:
    """Return the path of a program or library of the debug builds."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = target / "debug" / name
    assert path.exists(), f"{path} is not built; run `make debug-builds`"
    return path
