"""One manager, many threads."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hybrid_blocks
import numpy as np
import pytest
from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from hybrid_blocks.errors import HybridBlocksError

CRATES = [Path(__file__).parents[2] / "rust" / crate / "src" for crate in ("interop", "py", "vllm")]
NUM_THREADS = 8


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def new_manager() -> BlockManager:
    groups = [GroupSpec("full", 4), GroupSpec("sliding_window", 4, window=9)]
    return BlockManager(
        groups, block_hasher("sha256", block_size=4), num_blocks=200, enable_events=True
    )


def serve(manager: BlockManager, thread: int) -> int:
    """Serve requests one after the other; return how many got through."""
    served = 0
    for number in range(60):
        prompt = [number % 7] * (8 + thread)
        handle = manager.add_request(f"{thread}/{number}", prompt)
        one = np.array([handle], dtype=np.int64)
        left = len(prompt) - manager.match_prefix(handle)
        if manager.allocate(one, np.array([left], dtype=np.int32)) == 1:
            manager.advance(one, np.array([left], dtype=np.int32))
            manager.append_tokens(one, np.array([thread], dtype=np.int32))
            served += manager.allocate(one, np.array([1], dtype=np.int32))
        manager.take_events()
        manager.free(one)
        with pytest.raises(HybridBlocksError):
            manager.free(one)
    return served


def test_threads_share_a_manager_and_nothing_leaks() -> None:
    manager = new_manager()
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        served = list(pool.map(lambda thread: serve(manager, thread), range(NUM_THREADS)))
    assert min(served) > 0
    manager.check_integrity()
    assert (manager.num_requests, manager.num_free_blocks) == (0, 199)


@pytest.mark.wheel
def test_the_manager_has_no_method_that_injects_a_fault() -> None:
    assert not [name for name in dir(BlockManager) if name[0] == "_" and name[1] != "_"]


def test_every_class_of_the_extension_is_frozen() -> None:
    sources = "\n".join(path.read_text() for crate in CRATES for path in crate.rglob("*.rs"))
    attribute = r"#\[[^\]]*\]\s*"
    pattern = (
        rf"#\[pyclass(?:\((?P<options>[^\]]*)\))?\]\s*(?:{attribute})*"
        r"pub(?:\(crate\))? struct (?P<name>\w+)"
    )
    found = {_python_name(match): match["options"] or "" for match in re.finditer(pattern, sources)}
    modules = (hybrid_blocks._core, hybrid_blocks._core.vllm, hybrid_blocks._core.offload)
    classes = {name for it in modules for name, item in vars(it).items() if isinstance(item, type)}
    assert {"BlockHasher", "BlockManager", "RustKVCacheManager"} <= classes
    assert classes == found.keys()
    assert sources.count("#[pyclass") == len(found)
    assert not [name for name, options in found.items() if "frozen" not in options.split(", ")]


def _python_name(match: re.Match[str]) -> str:
    renamed = re.search(r'name = "(\w+)"', match["options"] or "")
    return renamed[1] if renamed else match["name"]
