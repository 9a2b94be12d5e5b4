"""Every request reads what its own tokens wrote: vLLM's scheduler drives a fake worker."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hybrid_blocks.kernels import StateLayout
from hybrid_blocks.model.layer import StateFormat
from hybrid_blocks.tools.profile.loop import fingerprint_schedule
from hybrid_blocks.vllm import check
from hybrid_blocks.vllm.level import CHECKPOINTS, Level
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.worker.copies import Recipe
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint
from installed import installed
from oracle.engines import chunked, full, mamba, mla, sliding
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

from .fake_worker import CorruptedError
from .fake_worker_engine import SCHEDULERS, FakeEngine, make_engine

NUM_STEPS = int(os.environ.get("HYBRID_BLOCKS_ORACLE_STEPS", "5000"))
MAX_MODEL_LEN = 160
MAX_NUM_REQUESTS = 8
NATURAL_BLOCK_SIZE = 4
LEVELS = [Level.OFF, Level.MANAGER, Level.NATURAL]


@dataclass(frozen=True)
class Mix:
    """Groups of a model, and how many units give its requests reason to preempt each other."""

    groups: tuple[Any, ...]
    num_blocks: int
    num_drafts: int = 0
    enable_caching: bool = True
    hash_block_size: int = 16
    drafter: int | None = None
    """The group of the drafter's own layers."""
    retention_interval: int | None = None
    """Tokens between the states that vLLM keeps of a request; None keeps them all."""
    is_priority: bool = False
    """Whether requests have priorities, and those of a low one are preempted first."""
    share_accepted: float = 0.6
    """How many of the drafts are right."""
    checkpoint_format: StateFormat = "full"
    """How level ``natural`` keeps checkpoints; others keep them as they are."""
    prefill_checkpoint_alignment: int | None = None
    """Multiple of tokens after which level ``natural`` keeps states from inside a forward."""
    dcp: int = 1
    """Ranks that each hold a part of every attention block."""

    @property
    def has_windows(self) -> bool:
        """Whether some attention looks back over a part of the tokens."""
        return not all(isinstance(spec, FullAttentionSpec | MambaSpec) for spec in self.groups)

    def config(self, level: Level, *, zeroes_single_blocks: bool = False) -> KVCacheConfig:
        """Return the configuration over blocks, or over as many bytes in slabs."""
        if level is Level.NATURAL:
            return replace(self._natural_config(), zeroes_single_blocks=zeroes_single_blocks)
        return KVCacheConfig(
            self.num_blocks,
            [],
            _groups(self.groups, self.drafter),
            prefix_cache_retention_interval=self.retention_interval,
        )

    def of_rank(self, config: KVCacheConfig) -> KVCacheConfig:
        """Return the configuration of a rank; the fake worker plays all of them."""
        groups = [
            replace(group, kv_cache_spec=replace(spec, block_size=spec.block_size // self.dcp))
            if (spec := group.kv_cache_spec).dcp_sharded
            else group
            for group in config.kv_cache_groups
        ]
        return replace(config, kv_cache_groups=groups)

    def configure(self, config: VllmConfig) -> None:
        """Switch on in vLLM's configuration what the mix asks for."""
        if self.is_priority:
            config.scheduler_config.policy = "priority"

    def _natural_config(self) -> NaturalKVCacheConfig:
        """Cut slabs into 5 blocks of full attention, 7 of a drafter, 3 of windows, or one state."""
        specs = [
            replace(spec, block_size=MAX_MODEL_LEN)
            if isinstance(spec, MambaSpec)
            else replace(spec, block_size=NATURAL_BLOCK_SIZE)
            for spec in self.groups
        ]
        sizes = [
            1 if isinstance(spec, MambaSpec) else 5 if isinstance(spec, FullAttentionSpec) else 3
            for spec in specs
        ]
        if self.drafter is not None:
            sizes[self.drafter] = 7
        kinds = list(dict.fromkeys(sizes))
        are_apart = [
            isinstance(spec, MambaSpec) and self.checkpoint_format != "full" for spec in specs
        ]
        # The fake worker converts by itself.
        layout = StateLayout(
            state_format=self.checkpoint_format,
            num_running=0,
            num_kept=0,
            page_bytes=0,
            heads=0,
            numbers=0,
            runs=(),
        )
        recipe = Recipe(0, layout)
        return NaturalKVCacheConfig(
            # Slabs go further than blocks: fewer of them let requests preempt each other.
            max(self.num_blocks // 2, _least_slabs(specs, sizes)),
            [],
            _groups(specs, self.drafter),
            pools=tuple(kinds.index(size) for size in sizes),
            kept_pools=tuple(len(kinds) if apart else None for apart in are_apart),
            prefill_checkpoint_alignment=self.prefill_checkpoint_alignment,
            recipes=tuple(recipe if apart else None for apart in are_apart),
            # Two checkpoints, where they have a pool of their own.
            blocks_per_slab=(*kinds, 2) if any(are_apart) else tuple(kinds),
        )


def _groups(specs: Iterable[Any], drafter: int | None) -> list[KVCacheGroupSpec]:
    return [
        KVCacheGroupSpec([f"layer.{number}"], spec, is_eagle_group=number == drafter)
        for number, spec in enumerate(specs)
    ]


def _least_slabs(specs: Iterable[Any], sizes: Iterable[int]) -> int:
    """Return the slabs of the longest request, all of whose tokens may be in flight, and block 0.

    An engine is not started with less: vLLM would admit a request of that length never.
    """
    num_blocks: dict[int, int] = {}
    for spec, size in zip(specs, sizes, strict=True):
        is_state = isinstance(spec, MambaSpec)
        num_own = (
            1 + spec.num_speculative_blocks if is_state else MAX_MODEL_LEN // spec.block_size + 1
        )
        num_blocks[size] = num_blocks.get(size, 0) + num_own
    return 1 + sum(-(-count // size) for size, count in num_blocks.items())


def state(num_drafts: int = 0, mode: str = "align", block_size: int = 16) -> Any:
    return mamba(block_size, mode, num_drafts)


MIXES = {
    "full": Mix((full(16),), 30),
    "full-drafts": Mix((full(16),), 30, num_drafts=3),
    "mla": Mix((mla(16),), 30),
    "full-sliding": Mix((full(16), sliding(16, 33), sliding(16, 20)), 60),
    "full-chunked": Mix((full(16), chunked(16, 32)), 40),
    "full-state": Mix((full(16), state()), 40),
    "full-3-states": Mix((full(16), state(), state(), state()), 60),
    "full-3-states-priorities": Mix((full(16), state(), state(), state()), 40, is_priority=True),
    "full-state-drafts": Mix((full(16), state(3), state(3)), 70, num_drafts=3),
    "full-state-fine": Mix((full(16), state(), state()), 50, hash_block_size=4),
    "full-state-fine-drafts": Mix((full(16), state(2)), 50, 2, hash_block_size=4),
    "mla-state": Mix((mla(16), state()), 40),
    "full-sliding-state": Mix((full(16), sliding(16, 33), state(1)), 60, num_drafts=1),
    "state-alone": Mix((state(),), 12),
    "full-drafter": Mix((full(16), full(16)), 60, num_drafts=2, drafter=1),
    "full-sliding-drafter": Mix((full(16), sliding(16, 33), full(16)), 80, 3, drafter=2),
    "full-state-drafter": Mix((full(16), state(3), full(16)), 90, num_drafts=3, drafter=2),
    "mla-states-drafter": Mix((mla(16), state(1), state(1), mla(16)), 90, 1, drafter=3),
    "full-states-int8": Mix((full(16), state(), state()), 60, checkpoint_format="int8"),
    "full-sliding-state-drafts-bf16": Mix(
        (full(16), sliding(16, 33), state(2)), 70, 2, checkpoint_format="bf16"
    ),
    "full-state-inside": Mix((full(16), state()), 50, prefill_checkpoint_alignment=1),
    "full-states-inside-drafts": Mix(
        (full(16), state(3), state(3)), 80, num_drafts=3, prefill_checkpoint_alignment=1
    ),
    "full-state-inside-drafter": Mix(
        (full(16), state(2), full(16)), 90, 2, drafter=2, prefill_checkpoint_alignment=1
    ),
    "full-sliding-state-inside-priorities": Mix(
        (full(16), sliding(16, 33), state()), 50, is_priority=True, prefill_checkpoint_alignment=4
    ),
    "full-on-2-ranks": Mix((full(16),), 30, dcp=2),
    "full-state-on-2-ranks": Mix((full(32), state(), state()), 50, dcp=2),
    "mla-state-on-4-ranks": Mix((mla(64), state(2)), 50, 2, dcp=4),
    "uncached-states": Mix((full(16), state(2, "none", MAX_MODEL_LEN)), 40, 2, False),
}


def live(
    mix: Mix, level: Level, seed: int, num_steps: int, *, is_async: bool, **options: Any
) -> FakeEngine:
    """Live a random life and return the engine after it."""
    with started(mix, level, Random(seed), is_async=is_async, **options) as engine:
        engine.live(num_steps, MAX_NUM_REQUESTS)
    return engine


@contextmanager
def started(
    mix: Mix,
    level: Level,
    random: Random,
    *,
    is_async: bool,
    is_one_call: bool = False,
    num_stages: int = 1,
    tamper: Callable[[SchedulerOutput], object] = lambda _: None,
    fault: Callable[[SchedulerOutput], object] | None = None,
) -> Iterator[FakeEngine]:
    """Start an engine at a level, with the check.

    ``is_one_call`` takes this package's schedulers in place of vLLM's.
    ``fault`` changes what the scheduler says before it is checked, ``tamper`` after that.
    At level ``natural`` a synchronous worker zeroes single blocks, as vLLM's first on the CPU does,
    unless that one is refused the mix.
    """
    is_natural = level is Level.NATURAL
    one_kind = not mix.has_windows and mix.drafter is None
    zeroes_blocks = is_natural and not is_async and one_kind
    config = mix.config(level, zeroes_single_blocks=zeroes_blocks)
    # Short prompts leave few states where they learn to; those inside chunks are to be many.
    places = "learned" if mix.prefill_checkpoint_alignment is None else "learned/every=12"
    checkpoints = {CHECKPOINTS: f"{places}/format={mix.checkpoint_format}"}
    with installed(level):
        with patch.dict(os.environ, checkpoints):
            engine: FakeEngine = make_engine(
                config,
                random,
                of_rank=mix.of_rank(config),
                dcp=mix.dcp,
                max_model_len=MAX_MODEL_LEN,
                max_num_batched_tokens=random.choice((24, 37, 64, 203)),
                hash_block_size=NATURAL_BLOCK_SIZE if is_natural else mix.hash_block_size,
                scheduler_cls=SCHEDULERS[is_one_call][is_async],
                num_drafts=mix.num_drafts,
                share_accepted=mix.share_accepted,
                draft_method="ngram" if mix.drafter is None else "eagle",
                enable_caching=mix.enable_caching,
                configure=mix.configure,
                engine={
                    "num_stages": num_stages,
                    "has_priorities": mix.is_priority,
                    "tamper": tamper,
                },
            )
        scheduler = engine.scheduler
        if fault:
            scheduler.schedule = partial(_schedule, scheduler.schedule, fault)
        check.attach(scheduler)
        yield engine


def _schedule(schedule: Callable[..., SchedulerOutput], fault: Any, *args: Any) -> SchedulerOutput:
    output = schedule(*args)
    fault(output)
    return output


# Level natural needs an attention layer.
CASES = [
    (level, mix, is_one_call)
    for level in LEVELS
    for mix in MIXES
    for is_one_call in (False, True)
    if (level != "natural" or mix != "state-alone")
    and (level == "natural" or MIXES[mix].checkpoint_format == "full")
    and (level == "natural" or MIXES[mix].prefill_checkpoint_alignment is None)
    and (level == "natural" or not is_one_call)
]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("level", "mix", "is_one_call"), CASES)
def test_every_request_reads_what_its_tokens_wrote(
    level: Level, mix: str, is_one_call: bool, is_async: bool
) -> None:
    num_steps = -(-NUM_STEPS // (2 * len(CASES)))
    options = {"is_async": is_async, "is_one_call": is_one_call}
    engine = live(MIXES[mix], level, 7, num_steps, **options)
    assert engine.num_finished > num_steps // 20
    assert engine.worker.num_checked > num_steps


@pytest.mark.parametrize("mix", ["full-3-states", "full-3-states-priorities"])
def test_scheduling_in_one_call_decides_the_same(mix: str) -> None:
    decided: list[list[bytes]] = [[], []]
    for is_one_call, noted in enumerate(decided):

        def note(output: SchedulerOutput, noted: list[bytes] = noted) -> None:
            noted.append(fingerprint_schedule(output))

        options: dict[str, Any] = {"is_one_call": bool(is_one_call), "tamper": note}
        engine = live(MIXES[mix], Level.NATURAL, 3, 400, is_async=True, **options)
    assert decided[0] == decided[1]
    assert engine.scheduler._decodes is not None
    assert engine.num_preemptions > 0


@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "mix", ["full-sliding", "full-state", "full-state-fine", "full-state-inside"]
)
def test_batches_of_several_pipeline_stages_are_under_way_at_once(
    mix: str, is_async: bool, num_stages: int
) -> None:
    for is_one_call in (False, True):
        engine = live(
            MIXES[mix],
            Level.NATURAL,
            11,
            400,
            is_async=is_async,
            is_one_call=is_one_call,
            num_stages=num_stages,
        )
        assert engine.num_finished > 20
        assert engine.num_cached_tokens > 0


@pytest.mark.parametrize("level", LEVELS)
def test_lives_see_hits_copies_and_preemptions(level: Level) -> None:
    engine = live(MIXES["full-state-fine"], level, 4, 400, is_async=False)
    assert engine.num_cached_tokens > 0
    assert engine.num_preemptions > 0
    assert engine.worker.num_copies > 0


def test_lives_with_smaller_checkpoints_see_conversions_hits_and_preemptions() -> None:
    engine = live(MIXES["full-states-int8"], Level.NATURAL, 4, 400, is_async=False)
    assert engine.num_cached_tokens > 0
    assert engine.num_preemptions > 0
    assert engine.worker.num_conversions > 100


INSIDE = [mix for mix in MIXES if MIXES[mix].prefill_checkpoint_alignment]
# The worker's drafts are those of one batch under way.
STAGED = [(mix, stages) for mix in INSIDE for stages in ((1,) if MIXES[mix].num_drafts else (1, 2))]


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_one_call", [False, True], ids=["vLLM's calls", "one call"])
@pytest.mark.parametrize(("mix", "num_stages"), STAGED)
def test_states_kept_inside_chunks_are_right_for_100_000_steps(
    mix: str, is_one_call: bool, is_async: bool, num_stages: int
) -> None:
    options = {"is_one_call": is_one_call, "num_stages": num_stages}
    num_steps = -(-100_000 // (4 * len(STAGED)))
    engine = live(MIXES[mix], Level.NATURAL, 13, num_steps, is_async=is_async, **options)
    assert engine.worker.num_checkpoints > num_steps // 10
    assert engine.num_cached_tokens > 0
    print(num_steps, engine.num_finished, engine.num_preemptions, engine.worker.num_checkpoints)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mix", INSIDE)
def test_lives_with_states_kept_inside_chunks_see_hits_and_preemptions(
    mix: str, is_async: bool
) -> None:
    engine = live(MIXES[mix], Level.NATURAL, 4, 600, is_async=is_async)
    assert engine.num_cached_tokens > 0
    assert engine.num_preemptions > 0
    assert engine.worker.num_checkpoints > 20


def forget_copies(output: SchedulerOutput) -> None:
    output.kv_cache_block_copies = None


def forget_zeroing(output: SchedulerOutput) -> None:
    output.new_block_ids_to_zero = None


def swap_tables(output: SchedulerOutput) -> None:
    """Two requests that start in one step get each other's first block of the first group."""
    for one, other in pairwise(output.scheduled_new_reqs):
        ours, theirs = one.block_ids[0], other.block_ids[0]
        ours[0], theirs[0] = theirs[0], ours[0]


def copy_in_turn(output: SchedulerOutput) -> None:
    """Copies are made in a chain, whose links vLLM gathers before it scatters any."""
    copies = output.kv_cache_block_copies or []
    if len(copies) > 1:
        copies[1] = type(copies[1])(copies[0][1], copies[1][1])


def zero_too_much(output: SchedulerOutput) -> None:
    """Blocks of a hit are zeroed too."""
    for new in output.scheduled_new_reqs:
        if new.num_computed_tokens and output.new_block_ids_to_zero:
            output.new_block_ids_to_zero.append(new.block_ids[0][0])


def forget_checkpoints(output: SchedulerOutput) -> None:
    copies = output.kv_cache_block_copies or []
    output.kv_cache_block_copies = [it for it in copies if not isinstance(it, PrefillCheckpoint)]


def test_a_state_that_the_worker_does_not_keep_is_noticed() -> None:
    options: Any = {"is_async": False, "tamper": forget_checkpoints}
    with pytest.raises(CorruptedError):
        live(MIXES["full-state-inside"], Level.NATURAL, 3, 1_000, **options)


@pytest.mark.parametrize(
    ("fault", "mix"),
    [
        (forget_copies, "full-state-fine"),
        (forget_zeroing, "full-state"),
        (swap_tables, "full-state"),
        (copy_in_turn, "full-state-fine"),
        (zero_too_much, "full-state"),
    ],
)
def test_a_fault_in_the_schedulers_output_is_noticed(fault: Any, mix: str) -> None:
    with pytest.raises(CorruptedError):
        live(MIXES[mix], Level.OFF, 3, 3_000, is_async=False, tamper=fault)
