"""Digests and files of ARM, emulated, are those of this machine: ``make test-arm`` runs this file.

As a program, ``python on_arm.py digests`` prints digests; ``write`` and ``read`` take a folder.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.hashing import Algorithm, block_hasher

ENDS = ("closed", "killed")
HERE, ARM = [sys.executable], os.environ.get("ARM_PYTHON", "").split()
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
LAYOUTS = [b"attention".ljust(16), b"state".ljust(16)]
SIZES = (4096, 8000, 64 * 1024, 100_001)
"""Bytes of a chunk: pages of 4 and 64 KiB, and none of either."""


def keys() -> list[bytes]:
    return [
        hashlib.sha256(str(at).encode()).digest() + (at % 2).to_bytes(4, "big") for at in range(64)
    ]


def chunks() -> list[npt.NDArray[np.uint8]]:
    random = np.random.default_rng(7)
    return [random.integers(0, 256, SIZES[at % 4], dtype=np.uint8) for at in range(64)]


def disk(folder: str) -> DiskStore:
    return DiskStore(folder, 1 << 26, layouts=LAYOUTS, segment_bytes=1 << 20, largest_chunk=1 << 17)


def digests() -> dict[str, list[str]]:
    """Return digests by algorithm of tokens that reach each byte of their integers."""
    tokens = np.random.default_rng(7).integers(0, 2**31, 4096, dtype=np.int32)
    seeds = {it: bytes(16 if it.startswith("xxhash") else 32) for it in ALGORITHMS}
    hashers = {it: block_hasher(it, 16, none_hash=seed) for it, seed in seeds.items()}
    return {it: [d.hex() for d in hasher.hash_blocks(tokens)] for it, hasher in hashers.items()}


def write(folder: str, end: str) -> None:
    """Write chunks, and end with the segment sealed, or as a killed process leaves it."""
    store = disk(folder)
    assert store.store(keys(), list(range(16, 16 * 65, 16)), chunks()) == 64
    if end == "killed":
        # Without an index of the last segment the next start reads it through.
        os._exit(0)
    store.close()


def read(folder: str) -> list[str]:
    """Return a digest of each chunk that is found."""
    store = disk(folder)
    found = [np.zeros_like(chunk) for chunk in chunks()]
    loaded = store.load(keys(), found)
    store.close()
    return [
        hashlib.sha256(chunk.tobytes()).hexdigest() if is_there else ""
        for chunk, is_there in zip(found, loaded, strict=True)
    ]


def run(python: list[str], *words: object) -> str:
    command = [*python, __file__, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def arm_is_there() -> None:
    assert ARM, "ARM_PYTHON names an emulated Python; make test-arm sets it"


def test_the_emulated_machine_is_arm() -> None:
    command = [*ARM, "-c", "import platform; print(platform.machine())"]
    assert subprocess.check_output(command, text=True).strip() == "aarch64"


def test_digests_are_equal() -> None:
    here = run(HERE, "digests")
    assert run(ARM, "digests") == here
    assert {len(it) for it in json.loads(here).values()} == {256}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("writer", "reader"), [(HERE, ARM), (ARM, HERE)], ids=["reads", "writes"])
def test_segments_are_read_on_the_other_architecture(
    writer: list[str], reader: list[str], end: str, tmp_path: Path
) -> None:
    run(writer, "write", tmp_path, end)
    expected = [hashlib.sha256(chunk.tobytes()).hexdigest() for chunk in chunks()]
    assert json.loads(run(reader, "read", tmp_path)) == expected


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["digests"]:
            print(json.dumps(digests()))
        case ["write", folder, end]:
            write(folder, end)
        case ["read", folder]:
            print(json.dumps(read(folder)))
