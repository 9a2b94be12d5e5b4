"""A public type's name stands for one thing in all of the engine's crates."""

import re
from collections import defaultdict
from pathlib import Path

RUST = Path(__file__).parents[1] / "rust"

# `ops` is for tests, and `offload` knows the core's types by their paths.
APART = {"ops", "offload"}


def test_no_two_public_types_have_one_name() -> None:
    files = defaultdict(list)
    for file in sorted(RUST.glob("*/src/**/*.rs")):
        crate = file.relative_to(RUST).parts[0]
        if crate not in APART:
            pattern = r"^\s*pub (?:struct|enum|trait|type|union) (\w+)"
            for name in re.findall(pattern, file.read_text(), re.MULTILINE):
                files[name].append(str(file.relative_to(RUST)))
    assert len(files) > 50
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
