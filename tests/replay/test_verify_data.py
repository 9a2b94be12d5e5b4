"""Replays whose copies are really run: every request reads what its own tokens wrote."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks import BlockManager, CheckpointPolicy
from hybrid_blocks.cli import app
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import (
    Cache,
    Engine,
    EngineConfig,
    ManagerName,
    ReplayError,
    Result,
    RustOptions,
    block_cache,
    make_manager,
    model_cache,
    replay,
)
from hybrid_blocks.replay.managers.rust import make_rust
from hybrid_blocks.replay.managers.verified import VerifiedManager
from hybrid_blocks.replay.prefix_digests import PrefixDigests
from hybrid_blocks.trace import Trace
from hybrid_blocks.trace.builder import TraceBuilder
from typer.testing import CliRunner

CONFIG = EngineConfig(max_num_seqs=16, max_num_batched_tokens=512, watermark=0.0)


def made(model: str, mib: int, **options: Any) -> Cache:
    deployment = Deployment(
        in_flight_batches=1, max_num_seqs=16, max_num_batched_tokens=512, **options
    )
    return model_cache(model, mib * 2**20, deployment)


def turns(num_conversations: int = 6, num_turns: int = 4, output_tokens: int = 41) -> Trace:
    """Conversations under one system prompt that all come back at once."""
    builder = TraceBuilder("turns")
    system = builder.fresh(96)
    spans = [[system] for _ in range(num_conversations)]
    leaders = [-1] * num_conversations
    for _ in range(num_turns):
        for at, history in enumerate(spans):
            history.append(builder.fresh(150 + 37 * at))
            prompt = sum(count for _, count in history)
            answer = builder.fresh(output_tokens)
            leaders[at] = builder.add(
                [*history, answer],
                arrival=0.0,
                prompt_tokens=prompt,
                output_tokens=output_tokens,
                follows=leaders[at],
            )
            history.append(answer)
    return builder.build()


def run(
    cache: Cache, trace: Trace | None = None, *, verify_data: bool, state_format: str = "full"
) -> Result:
    """Run short turns, with checkpoints as close as their prompts ask for."""
    placement = CheckpointPolicy(prompt_margin=0, follow_every=16, format=state_format)
    return replay(
        trace or turns(),
        manager_name=ManagerName.RUST,
        cache=cache,
        config=CONFIG,
        rust=RustOptions(placement=placement),
        verify_data=verify_data,
    )[0]


def verified(cache: Cache, trace: Trace | None = None) -> Result:
    return run(cache, trace, verify_data=True)


def test_a_hybrid_model_reads_what_it_wrote_through_forks_and_evictions() -> None:
    cache = made("Qwen3.5-27B", 1300, num_speculative_tokens=2)
    result = verified(cache, turns(output_tokens=400))
    assert result.requests == 24
    for counted in (
        result.verified_reads,
        result.forks,
        result.limit_attention_evicted,
        result.preemptions,
    ):
        assert counted is not None
        assert counted > 0


@pytest.mark.parametrize(
    ("model", "mib"),
    [
        ("Nemotron-H-8B", 1400),
        ("Granite-4.0-H-Small", 900),
        ("Granite-4.0-Micro", 300),
        ("gpt-oss-20b", 80),
        ("Llama-4-Scout-17B-16E", 500),
    ],
)
def test_groups_of_every_kind_read_what_they_wrote(model: str, mib: int) -> None:
    result = verified(made(model, mib))
    assert result.requests == 24
    assert result.hit_tokens > 0
    assert (result.verified_reads or 0) > result.steps


@pytest.mark.parametrize("state_format", ["bf16", "int8"])
def test_a_state_is_read_that_was_converted_to_a_checkpoint_and_back(state_format: str) -> None:
    cache = made("Qwen3.5-27B", 1300, num_speculative_tokens=2)
    result = run(cache, turns(output_tokens=400), verify_data=True, state_format=state_format)
    assert result.requests == 24
    for counted in (result.verified_reads, result.forks, result.preemptions):
        assert (counted or 0) > 0


def test_checking_changes_nothing_but_the_times() -> None:
    cache = made("Granite-4.0-H-Small", 900)
    plain = run(cache, verify_data=False)
    checked = verified(cache)
    assert plain.verified_reads is None
    for name in ("hit_tokens", "forks", "checkpoints", "steps", "output_tokens", "virtual_seconds"):
        assert getattr(plain, name) == getattr(checked, name)


class Faulty:
    """A manager's core that loses a copy out of a checkpoint, or shows a wrong block."""

    def __init__(self, core: BlockManager, *, lose_fork: bool = False, wrong_block: bool = False):
        self._core = core
        self._lose_fork = lose_fork
        self._wrong_block = wrong_block
        self._num_forks = 0

    def take_copies(self) -> npt.NDArray[np.int32]:
        copies = self._core.take_copies()
        before, self._num_forks = self._num_forks, self._core.stats()["forks"]
        if self._lose_fork and self._num_forks > before:
            self._lose_fork = False
            # A request that joins asks for its copies last.
            return copies[:-1]
        return copies

    def block_ids(self, handle: int, group: int) -> npt.NDArray[np.int32]:
        table = self._core.block_ids(handle, group)
        if self._wrong_block and len(table) > 20:
            table[3] = table[4]
        return table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def broken(cache: Cache, **faults: Any) -> VerifiedManager:
    inner = make_rust(cache, CONFIG, RustOptions())
    inner.core = cast("BlockManager", Faulty(inner.core, **faults))
    return VerifiedManager(inner, cache.geometry)


def test_one_lost_copy_is_caught_with_request_group_and_position() -> None:
    cache = made("Nemotron-H-8B", 1400)
    kinds = [group.kind for group in cache.geometry.groups]
    state = max(at for at, kind in enumerate(kinds) if kind == "state")
    engine = Engine(turns(), broken(cache, lose_fork=True), cache, CONFIG)
    with pytest.raises(ReplayError, match=rf"request \d+, group {state} .*position 0 .*holds tag"):
        engine.run()


def test_a_wrong_block_is_caught_with_its_position() -> None:
    cache = block_cache(200, 16)
    engine = Engine(turns(), broken(cache, wrong_block=True), cache, CONFIG)
    with pytest.raises(ReplayError, match=r"request \d+, group 0 \(full\), position [34] .*holds"):
        engine.run()


def test_blocks_are_taken_through_an_offload() -> None:
    cache = made("Granite-4.0-H-Small", 900)
    manager = make_manager(ManagerName.RUST, cache, CONFIG, verify_data=True)
    Engine(turns(), manager, cache, CONFIG).run()
    assert manager.stats()["staged_blocks"] > 0


def test_only_the_rust_manager_says_which_copies_to_run() -> None:
    with pytest.raises(ReplayError, match="--manager rust"):
        make_manager(ManagerName.VLLM, block_cache(9, 16), CONFIG, verify_data=True)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tagged_arena", "managers.tagged_device", "managers.verified"):
        monkeypatch.delitem(sys.modules, f"hybrid_blocks.replay.{name}")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ReplayError, match=r"Install hybrid-blocks\[torch\]"):
        make_manager(ManagerName.RUST, block_cache(9, 16), CONFIG, verify_data=True)


def test_the_command_shows_and_writes_the_verified_reads(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    arguments = ["replay", "--limit", "5", "--num-blocks", "2000", "--verify-data", "--json", path]
    ran = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    count = json.loads(path.read_bytes())["verified_reads"]
    assert count > 0
    assert f"{count:,} blocks" in ran.output


def test_prefixes_have_one_digest_however_they_grew_and_others_have_others() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 3, 500, dtype=np.int32)
    lengths = np.arange(501)
    at_once, grown = PrefixDigests(tokens), PrefixDigests(tokens[:7])
    for start in range(7, 500, 29):
        grown.extend(tokens[start : start + 29])
    assert (at_once.of(lengths) == grown.of(lengths)).all()
    assert len(set(at_once.of(lengths).tolist())) == 501
    swapped = tokens.copy()
    swapped[[0, 1]] = (2, 1) if tokens[0] != 2 else (1, 2)
    assert not (at_once.of(lengths[2:]) == PrefixDigests(swapped).of(lengths[2:])).any()
    with pytest.raises(IndexError, match="501 tokens were asked for, 500 are known"):
        at_once.of(np.array([501]))
