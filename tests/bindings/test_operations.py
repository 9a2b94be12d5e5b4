"""The Python manager answers random operations as the core does, call by call.

The operations are those of ``rust/ops``, where a naive model checks the core's answers. Bytes drawn
here are decoded there; what comes back is every call that was made, and what it returned.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from debug_builds import debug_build
from examples import examples
from hybrid_blocks import BlockManager, CheckpointPolicy, GroupSpec, block_hasher
from hybrid_blocks.errors import HybridBlocksError
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "rust" / "ops" / "tests" / "recorded").glob("*.jsonl"))
SETUP_BYTES = 24
OP_BYTES = 8

ARGUMENTS: dict[str, tuple[type | None, ...]] = {
    "append_tokens": (np.int64, np.int32),
    "allocate": (np.int64, np.int32, None),
    "advance": (np.int64, np.int32),
    "preempt": (np.int64,),
    "free": (np.int64,),
}


@pytest.fixture(scope="session")
def binary() -> Path:
    """The program that runs operations on the core."""
    return debug_build("hybrid-blocks-ops")


def manager_of(setup: dict[str, Any]) -> BlockManager:
    shared = bool(setup["blocks_per_slab"])
    memory = {"num_slabs" if shared else "num_blocks": setup["num_slabs"]}
    return BlockManager(
        [GroupSpec(**group) for group in setup["groups"]],
        block_hasher("xxhash", setup["hash_block_size"], none_hash=bytes(16)),
        blocks_per_slab=setup["blocks_per_slab"] or None,
        enable_events=True,
        placement=CheckpointPolicy(setup["placement"]),
        max_in_flight_tokens=12,
        prefill_checkpoint_alignment=setup.get("prefill_checkpoint_alignment"),
        **memory,
    )


def event(told: tuple[Any, ...]) -> list[Any]:
    """An event without its digests, which are Python's own."""
    match told:
        case ("stored", *where, parent, digests):
            return ["stored", *where, parent is not None, len(digests)]
        case ("removed", _, group):
            return ["removed", group]
    return list(told)


def plain(value: Any) -> Any:
    """Arrays and tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def answer(manager: BlockManager, call: str, args: list[Any]) -> Any:
    kinds = ARGUMENTS.get(call, (None,) * len(args))
    pairs = zip(args, kinds, strict=True)
    args = [arg if kind is None else np.array(arg, dtype=kind) for arg, kind in pairs]
    try:
        if call == "add_request":
            request_id, tokens, session_id = args
            return plain(manager.add_request(request_id, tokens, session_id=session_id))
        if call == "take_events":
            return [event(told) for told in manager.take_events()]
        return plain(getattr(manager, call)(*args))
    except HybridBlocksError as error:
        return {"error": type(error).__name__}


def repeat(binary: Path, operations: bytes) -> list[str]:
    """Repeat the core's calls on a Python manager; return their names."""
    run = subprocess.run([binary, "--calls"], input=operations, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    setup, *calls = map(json.loads, run.stdout.splitlines())
    manager = manager_of(setup)
    for number, call in enumerate(calls):
        found = answer(manager, call["call"], call["args"])
        assert found == call["returned"], f"call {number}: {call}"
    return [call["call"] for call in calls]


@settings(max_examples=examples(80))
@given(
    setup=st.binary(min_size=SETUP_BYTES, max_size=SETUP_BYTES),
    operations=st.lists(st.binary(min_size=OP_BYTES, max_size=OP_BYTES), max_size=60),
)
def test_bindings_answer_as_the_core(binary: Path, setup: bytes, operations: list[bytes]) -> None:
    repeat(binary, setup + b"".join(operations))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_operations_are_answered_as_by_the_core(binary: Path, path: Path) -> None:
    calls = repeat(binary, path.read_bytes())
    assert {"add_request", "allocate", "advance", "free"} <= set(calls)


def test_every_call_of_the_core_is_one_that_python_has(binary: Path) -> None:
    rng = np.random.default_rng(7)
    made = {call for _ in range(40) for call in repeat(binary, rng.bytes(SETUP_BYTES + 480))}
    others = {"chunk", "reset", "tick", "set_hint", "set_session_hint"}
    others |= {"take_copies", "take_prefill_checkpoints"}
    assert {*ARGUMENTS, *others} <= made


def test_an_answer_that_differs_is_noticed(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.plain", lambda value: [value, "and more"])
    with pytest.raises(AssertionError, match="call 0"):
        repeat(binary, bytes(SETUP_BYTES + OP_BYTES))
