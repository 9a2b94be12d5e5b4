"""Hits by tier of traces whose answers are known, under vLLM's own scheduler."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.offload.groups import Group, Groups
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import EngineConfig, model_cache
from hybrid_blocks.replay.managers.vllm_groups import make_groups
from hybrid_blocks.replay.tiers import sizes
from hybrid_blocks.replay.tiers.below import Finished
from hybrid_blocks.replay.tiers.device import plan_device
from hybrid_blocks.replay.tiers.ledger import Ledger
from hybrid_blocks.replay.tiers.live import live_bytes
from hybrid_blocks.replay.tiers.result import TieredResult, TierFigures
from hybrid_blocks.replay.tiers.run import replay_tiers
from hybrid_blocks.replay.tiers.side import Side
from hybrid_blocks.replay.tiers.sizes import TierBytes
from hybrid_blocks.trace import Trace
from hybrid_blocks.trace.builder import TraceBuilder
from typer.testing import CliRunner

BLOCK = 784
"""Tokens of a block that vLLM chooses for the model."""
CHUNK = 49 << 20
"""Bytes of its block; states take a little less."""
PROMPT = 3 * BLOCK + 100
KEPT = 3 * BLOCK
"""A state is kept at the last block border of a prompt."""
DEVICE = 12 * CHUNK
"""One request, and hardly anything beside it."""


def serve(
    side: Side, trace: Trace, *, host: int, disk: int = 0, device: int = DEVICE
) -> TieredResult:
    deployment = Deployment(max_num_batched_tokens=8192, max_num_seqs=1, in_flight_batches=1)
    cache = model_cache("Qwen3.5-27B", device, deployment)
    config = EngineConfig(max_num_seqs=1, watermark=0)
    return replay_tiers(trace, cache, TierBytes(host=host, disk=disk), side, config)


def prompts(names: Sequence[str]) -> Trace:
    """One request after another, by name: ``a`` and ``a`` are equal, ``a-`` shares two blocks."""
    builder = TraceBuilder("by hand", num_reserved=1 << 20)
    for at, name in enumerate(names):
        first = ord(name[0]) * 10_000
        spans = [(first, PROMPT)]
        if name.endswith("-"):
            spans = [(first, 2 * BLOCK), builder.fresh(PROMPT - 2 * BLOCK)]
        spans.append(builder.fresh(4))
        builder.add(spans, arrival=10.0 * at, prompt_tokens=PROMPT, output_tokens=4, follows=-1)
    return builder.build()


def tier(result: TieredResult, name: str) -> TierFigures:
    (found,) = (it for it in result.tiers if it.tier == name)
    return found


def hits(result: TieredResult) -> list[int]:
    return [it.hit_tokens for it in result.tiers]


SIDES = [Side.HYBRID, Side.LAZY, Side.LRU, Side.ARC]


@pytest.mark.parametrize("side", SIDES)
def test_what_the_device_lost_comes_from_host_memory(side: Side) -> None:
    result = serve(side, prompts("aba"), host=40 * CHUNK)
    assert hits(result) == [0, KEPT]
    assert (result.requests, result.prompt_tokens) == (3, 3 * PROMPT)
    assert result.hit_rate == pytest.approx(KEPT / (3 * PROMPT))
    assert result.loaded_chunks == 3 + 3  # attention, and a state of each of three groups
    assert tier(result, "host").evicted_bytes == 0
    assert result.host_live_share is None


@pytest.mark.parametrize("side", SIDES)
def test_the_device_is_asked_first(side: Side) -> None:
    result = serve(side, prompts("aa"), host=40 * CHUNK)
    assert hits(result) == [KEPT, 0]
    assert result.loaded_chunks == 0


@pytest.mark.parametrize("side", SIDES)
def test_what_host_memory_lost_comes_from_the_disk(side: Side) -> None:
    result = serve(side, prompts("abca"), host=9 * CHUNK, disk=8 << 30)
    assert hits(result) == [0, 0, KEPT]
    assert result.promotions == 6
    assert result.wasted_promotions == 0
    assert tier(result, "disk").evicted_bytes == 0
    assert (tier(result, "host").evicted_bytes or 0) > 0


def test_attention_that_no_state_leads_to_is_read_in_vain_by_vllm_alone() -> None:
    trace = prompts(["a", "b", "c", "a-"])
    ours = serve(Side.HYBRID, trace, host=9 * CHUNK, disk=8 << 30)
    theirs = serve(Side.LRU, trace, host=9 * CHUNK, disk=8 << 30)
    assert hits(ours) == hits(theirs) == [0, 0, 0]
    assert (ours.promotions, ours.wasted_promotions) == (0, 0)
    assert (theirs.promotions, theirs.wasted_promotions) == (2, 2)


def test_a_full_disk_of_vllm_takes_nothing_more_and_ours_evicts() -> None:
    names = [chr(at) for at in range(ord("A"), ord("A") + 32)]
    trace = prompts([*names, names[-4], names[0]])
    ours = serve(Side.HYBRID, trace, host=9 * CHUNK, disk=8 << 30)
    theirs = serve(Side.LRU, trace, host=9 * CHUNK, disk=8 << 30)
    assert tier(ours, "disk").hit_tokens == KEPT  # the fourth from the end
    assert (tier(ours, "disk").evicted_bytes or 0) > 0
    assert tier(theirs, "disk").hit_tokens == KEPT  # the first
    assert tier(theirs, "disk").evicted_bytes == 0
    assert (tier(theirs, "disk").refused or 0) > 0
    for result in (ours, theirs):
        held = tier(result, "disk")
        assert (held.stored_bytes or 0) - (held.evicted_bytes or 0) <= 8 << 30


def test_a_disk_of_another_scale_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [chr(at) for at in range(ord("A"), ord("A") + 40)]
    trace = prompts([*names, *names[:4], *names[-8:]])
    usual = serve(Side.HYBRID, trace, host=9 * CHUNK, disk=8 << 30)
    monkeypatch.setattr(sizes, "_PAGES_A_CHUNK", 1024)
    finer = serve(Side.HYBRID, trace, host=9 * CHUNK, disk=8 << 30)
    assert hits(usual) == hits(finer)
    assert tier(usual, "disk").hit_tokens > 0
    assert usual.promotions == finer.promotions
    evicted = tier(finer, "disk").evicted_bytes or 0
    assert evicted > 0
    assert tier(usual, "disk").evicted_bytes == pytest.approx(evicted, rel=0.05)


@pytest.mark.parametrize("side", SIDES)
def test_all_managers_serve_the_same_requests_and_runs_are_equal(side: Side) -> None:
    trace = prompts("abacabadabacabaeabacaba")
    first, again, other = (
        serve(it, trace, host=20 * CHUNK, disk=8 << 30) for it in (side, side, Side.HYBRID)
    )
    assert msgspec.structs.replace(first, wall_seconds=0) == msgspec.structs.replace(
        again, wall_seconds=0
    )
    assert first.requests == other.requests == len(trace)
    assert first.prompt_tokens == other.prompt_tokens == len(trace) * PROMPT
    assert first.output_tokens == other.output_tokens == len(trace) * 4
    assert first.hit_tokens == sum(hits(first))


def test_lazy_stores_hit_as_much_and_no_more_is_stored() -> None:
    trace = prompts("abacabadabacabaeabacaba")
    eager, lazy = (serve(it, trace, host=40 * CHUNK) for it in (Side.HYBRID, Side.LAZY))
    assert hits(eager) == hits(lazy)
    assert hits(lazy)[1] > 0
    assert (tier(lazy, "host").stored_bytes or 0) <= (tier(eager, "host").stored_bytes or 0)


def test_a_preempted_request_goes_on_from_what_was_stored_then() -> None:
    """Two answers grow until one of them must give its blocks up."""
    builder = TraceBuilder("two", num_reserved=1 << 20)
    for at in range(2):
        spans = [((at + 1) * 10_000, PROMPT), builder.fresh(8 * BLOCK)]
        builder.add(spans, arrival=0.0, prompt_tokens=PROMPT, output_tokens=8 * BLOCK, follows=-1)
    results = []
    for side in (Side.HYBRID, Side.LAZY):
        deployment = Deployment(max_num_batched_tokens=8192, max_num_seqs=2, in_flight_batches=1)
        cache = model_cache("Qwen3.5-27B", 20 * CHUNK, deployment)
        config = EngineConfig(max_num_seqs=2, watermark=0)
        tiers = TierBytes(host=80 * CHUNK, disk=0)
        results.append(replay_tiers(builder.build(), cache, tiers, side, config))
    eager, lazy = results
    assert lazy.preemptions == eager.preemptions > 0
    assert lazy.requests == 2
    assert lazy.loaded_chunks == eager.loaded_chunks > 0


def test_answers_do_not_cost_the_states_of_their_prompts() -> None:
    """Prompts that are used again outlive those that are not, though answers came behind them."""
    builder = TraceBuilder("answers", num_reserved=1 << 20)
    for at in range(12):
        first = (at % 6) * 10_000
        spans = [(first, PROMPT), builder.fresh(2 * BLOCK)]
        builder.add(
            spans, arrival=100.0 * at, prompt_tokens=PROMPT, output_tokens=2 * BLOCK, follows=-1
        )
    # Room for six prompts with their states, and not for their answers.
    result = serve(Side.HYBRID, builder.build(), host=6 * 6 * CHUNK + 4 * CHUNK, device=15 * CHUNK)
    assert sum(hits(result)) == 6 * KEPT
    assert result.host_live_share is not None
    assert result.host_live_share > 0.8


@pytest.mark.parametrize("model", ["Qwen3.5-27B", "Kimi-Linear-48B-A3B", "DeepSeek-V3"])
def test_host_memory_counts_all_bytes_of_a_block(model: str) -> None:
    cache = model_cache(model, 64 << 30, Deployment())
    assert cache.deployment is not None
    plan = plan_device(cache)
    groups = make_groups(plan, cache.deployment)
    for group, planned in zip(groups, plan.groups, strict=True):
        assert group.kv_cache_spec.page_size_bytes == planned.spec.page_bytes


KEY = {
    (group, at): bytes([at]) * 32 + group.to_bytes(4, "big") for group in (0, 1) for at in range(9)
}
GROUPS = Groups(
    all=(
        Group(number=0, tokens=16, rank_bytes=10),
        Group(number=1, tokens=16, rank_bytes=100, window=1),
    ),
    num_ranks=1,
    tokens_per_hash=16,
)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([(0, 1), (0, 2), (1, 2)], 120),
        ([(0, 1), (0, 2), (0, 3), (1, 2)], 120),  # attention behind the last state
        ([(0, 2), (1, 2)], 0),  # a state without its attention
        ([(0, 1), (0, 2)], 0),
        ([(0, 1), (1, 1), (0, 2), (1, 2)], 220),
    ],
)
def test_live_is_what_a_request_can_go_on_from(held: list[tuple[int, int]], expected: int) -> None:
    request = Finished(list(KEY.values()), [16 * at for _, at in KEY])
    here = {KEY[it] for it in held}
    assert live_bytes(GROUPS, [request, request], here.__contains__) == expected


def test_a_promotion_is_wasted_unless_it_is_loaded() -> None:
    ledger = Ledger(host_bytes=lambda _: 10, disk_bytes=lambda _: 5)
    ledger.promote([b"loaded", b"evicted", b"left"])
    ledger.load([b"loaded"])
    ledger.evict([b"loaded", b"evicted"])
    assert ledger.wasted_promotions == 2
    assert (ledger.promoted_bytes, ledger.host_evicted_bytes) == (15, 20)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["replay", *arguments], env={"COLUMNS": "400"})
    assert result.exit_code == (0 if "--json" in arguments else 2), result.output
    return result.output


def test_the_command_prints_and_writes_hits_by_tier(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    output = run(
        "--limit", "6", "--model", "Qwen3.5-27B", "--memory", "2GiB", "--max-num-seqs", "1",
        "--host", "2GiB", "--disk", "8GiB", "--tiering", "hybrid,lru", "--json", str(path),
    )  # fmt: skip
    for text in ("device, 2 GiB", "host, 2 GiB", "disk, 8 GiB", "hybrid_blocks", "vllm lru"):
        assert text in output
    ours, theirs = msgspec.json.decode(path.read_bytes(), type=list[TieredResult])
    assert (ours.manager, theirs.manager) == ("hybrid_blocks", "vllm lru")
    assert ours.requests == theirs.requests == 6
    assert [it.tier for it in ours.tiers] == ["device", "host", "disk"]
    for tier, gib in zip(ours.tiers, (2, 2, 8), strict=True):
        row = next(line for line in output.splitlines() if f"each GiB of {tier.tier} " in line)
        assert f" {100 * tier.hit_rate / gib:.3f} points" in row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--disk", "8GiB"], "--disk 8GiB without --host"),
        (["--host", "much"], "--host 'much' is no size"),
        (
            ["--host", "8GiB", "--tiering", "fifo"],
            "known are natural, hybrid, lazy, lru, arc, prompts",
        ),
        (["--host", "8GiB", "--share", "5%"], "--share beside --host"),
        (["--host", "8GiB", "--tp", "2", "--model", "Qwen3.5-27B"], "--tp 2"),
    ],
)
def test_what_cannot_be_replayed_is_refused(arguments: list[str], message: str) -> None:
    assert message in run(*arguments)
