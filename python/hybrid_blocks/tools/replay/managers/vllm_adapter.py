"""vLLM's own manager behind the calls of a replay. Imports vLLM."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, MambaSpec
from vllm.v1.request import Request, RequestStatus

from hybrid_blocks.model.layer import (
    ChunkedAttention,
    CrossAttention,
    LatentAttention,
    SlidingWindow,
    State,
)
from hybrid_blocks.tools.plan import Deployment, VllmPlan
from hybrid_blocks.tools.plan.vllm.grouping import VllmGroup
from hybrid_blocks.tools.plan.vllm.spec import RING
from hybrid_blocks.tools.replay.cache import BlockUnit
from hybrid_blocks.tools.replay.config import EngineConfig, ReplayError
from hybrid_blocks.tools.replay.manager import Counts, Handles, ReplayManager
from hybrid_blocks.units import human
from hybrid_blocks.vllm.specs import is_state, make, row_of


@dataclass(frozen=True)
class BlockSizes:
    """Tokens of the block that all groups end at, of a hash, and between retained states."""

    block: int
    hash_block: int
    retention: int | None

    @classmethod
    def of(cls, groups: list[KVCacheGroupSpec], retention: int | None, unit: int | None) -> Self:
        """Read them off groups, but for a ``unit``; ``retention`` is rounded up to whole blocks."""
        specs = [group.kv_cache_spec for group in groups]
        sizes = [spec.block_size for spec in specs]
        hashed = [spec.block_size for spec in specs if getattr(spec, "prefix_cacheable", True)]
        block, hash_block = (lcm(*sizes), gcd(*hashed)) if len(sizes) > 1 else sizes * 2
        if not any(row_of(spec).name in {State.kind, SlidingWindow.kind} for spec in specs):
            retention = 0
        if retention:
            retention = -(-retention // block) * block
        return cls(block, unit or hash_block, retention)


def make_groups(
    plan: VllmPlan, deployment: Deployment, match_unit: int | None
) -> list[KVCacheGroupSpec]:
    """Return the groups of a plan.

    Raises:
        ReplayError: a kind of attention that is not replayed.
    """
    unit = match_unit or 1
    return [_group(group, number, deployment, unit) for number, group in enumerate(plan.groups)]


def _group(group: VllmGroup, number: int, deployment: Deployment, unit: int) -> KVCacheGroupSpec:
    """Return one group; a depth may hold several caches of a kind, each in a group of its own."""
    names = [f"layers.{member.layer.depth}.{number}.{member.spec.kind}" for member in group.members]
    return KVCacheGroupSpec(names, _spec(group, deployment, unit))


def _spec(group: VllmGroup, deployment: Deployment, unit: int) -> KVCacheSpec:
    """Spec with vLLM's tokens a block; only the planner looks at heads and formats.

    States written from inside a forward lie at multiples of ``unit`` too.
    """
    spec, alignment = group.spec, group.spec.checkpoint_alignment
    if spec.kind == "mamba":
        return MambaSpec(
            block_size=spec.block_tokens,
            shapes=((spec.unpadded_bytes,),),
            dtypes=(torch.uint8,),
            page_size_padded=spec.page_bytes,
            mamba_cache_mode=deployment.mamba_cache_mode,
            num_speculative_blocks=deployment.num_speculative_tokens,
            num_prefill_checkpoint_blocks=int(alignment is not None),
            prefill_checkpoint_alignment=alignment and lcm(alignment, unit),
        )
    made = attention_spec(spec.kind, spec.window, spec.block_tokens, spec.page_bytes)
    if made is None or spec.kind == CrossAttention.kind:
        raise ReplayError(f"vLLM's manager is not replayed for {spec.kind} attention")
    return made


def attention_spec(
    kind: str, window: int | None, block_tokens: int, page_bytes: int
) -> KVCacheSpec | None:
    """Return vLLM's spec of a layer by the bytes of a page; ``None`` if vLLM has no such kind."""
    parts = 1 if kind in {RING, LatentAttention.kind} else 2
    return make(
        kind,
        window,
        block_size=block_tokens,
        num_kv_heads=1,
        head_size=page_bytes // (parts * block_tokens),
        dtype=torch.uint8,
    )


HASH_ALGORITHM = "sha256"
"""The algorithm that vLLM hashes by."""

MARGIN = 3
"""Decode steps around a block border, and after a prompt, in which vLLM's manager may change."""


class VllmReplayAdapter(ReplayManager):
    """vLLM's manager, called in the order in which vLLM's scheduler calls it.

    A handle is the request's number. Prefill chunks are cut by the scheduler's own method. With
    ``spare_calls`` a decode step in the middle of a block is not asked about, because
    ``allocate_slots`` would change nothing; windows and drafts are always asked about.
    """

    def __init__(
        self,
        plan: VllmPlan,
        deployment: Deployment,
        config: EngineConfig,
        *,
        retention: int | None,
        spare_calls: bool,
        match_unit: int | None = None,
    ) -> None:
        groups = make_groups(plan, deployment, match_unit)
        sizes = BlockSizes.of(groups, retention, match_unit)
        block_size, hash_block_size = sizes.block, sizes.hash_block
        kinds = {row_of(group.kv_cache_spec).name for group in groups}
        has_states, has_windows = State.kind in kinds, SlidingWindow.kind in kinds
        has_chunks = ChunkedAttention.kind in kinds
        longest = plan.longest()
        if longest < 2:
            raise ReplayError(
                f"vLLM's plan has {plan.num_blocks} blocks of {human(plan.block_bytes)}, which "
                "hold no request; give more memory"
            )
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=plan.num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
                prefix_cache_retention_interval=sizes.retention,
            ),
            max_model_len=longest,
            scheduler_block_size=block_size,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=config.max_num_batched_tokens,
            watermark=config.watermark,
        )
        self.unit = BlockUnit(tokens=plan.block_tokens, num_bytes=plan.block_bytes)
        self._block_bytes = plan.block_bytes
        self._longest = longest
        self._num_lookahead_tokens = deployment.num_speculative_tokens
        self._pool = self.manager.block_pool
        hash_function = get_hash_fn_by_name(HASH_ALGORITHM)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_block_size, hash_function)
        self._sampling = SamplingParams(max_tokens=1 << 30)
        self._requests: dict[int, Request] = {}
        self._handles = itertools.count()
        self._matched: dict[int, tuple[KVCacheBlocks, int]] = {}
        self._num_running = 0
        self._is_sparing = spare_calls and not (
            has_windows or has_chunks or self._num_lookahead_tokens
        )
        self._border = hash_block_size
        self._num_decoded: dict[int, int] = {}
        self._scheduler = self._make_scheduler(groups, block_size, config) if has_states else None

    def _make_scheduler(
        self, groups: list[KVCacheGroupSpec], block_size: int, config: EngineConfig
    ) -> Any:
        """Make what ``Scheduler._mamba_block_aligned_split`` reads of a scheduler."""
        states = [g.kv_cache_spec for g in groups if is_state(g.kv_cache_spec)]
        coordinator: Any = self.manager.coordinator
        return SimpleNamespace(
            cache_config=SimpleNamespace(block_size=block_size),
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
            block_size=block_size,
            hash_block_size=coordinator.hash_block_size,
            use_eagle_block_drop=False,
            num_hash_lookahead_tokens=0,
            max_num_scheduled_tokens=config.max_num_batched_tokens,
            mamba_has_prefill_checkpoint_blocks=all(
                spec.num_prefill_checkpoint_blocks > 0 for spec in states
            ),
            mamba_prefill_checkpoint_alignment=states[0].prefill_checkpoint_alignment,
            mamba_partial_cache_hit=coordinator.hash_block_size < block_size
            and coordinator.enable_partial_hash_hits,
            mamba_shared_prefix_checkpoint=False,
        )

    # --- requests -----------------------------------------------------------

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request and return its handle."""
        request = Request(
            request_id=request_id,
            prompt_token_ids=tokens.tolist(),
            sampling_params=self._sampling,
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
        )
        handle = next(self._handles)
        self._requests[handle] = request
        return handle

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Append one sampled token to each request."""
        for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
            self._requests[handle].append_output_token_ids(token)

    # --- steps --------------------------------------------------------------

    def begin_step(self) -> None:
        """Tell the manager, and give back the blocks that copies were read from."""
        self.manager.new_step_starts()
        _, retained = self.manager.take_kv_cache_block_copies()
        if retained:
            self._pool.free_blocks(retained)

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the cache holds."""
        request = self._requests[handle]
        blocks, num_tokens, junction = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        self._matched[handle] = blocks, num_tokens
        return num_tokens

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> None:
        """Say nothing: what a block of vLLM's pool can hold depends on what is in the others."""

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:
        """End the chunk where vLLM's scheduler would."""
        if self._scheduler is None:
            return num_new_tokens
        request = self._requests[handle]
        hit = start - request.num_computed_tokens
        return Scheduler._mamba_block_aligned_split(self._scheduler, request, num_new_tokens, hit)

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for new tokens, in order, until one request does not fit."""
        for served, (handle, count) in enumerate(
            zip(handles.tolist(), num_new_tokens.tolist(), strict=True)
        ):
            request = self._requests[handle]
            if self._changes_nothing(handle, request, count):
                continue
            if request.status is RequestStatus.RUNNING:
                new = self.manager.allocate_slots(
                    request, count, num_lookahead_tokens=self._num_lookahead_tokens
                )
            else:
                new = self._admit(handle, request, count)
            if new is None:
                return served
        return len(handles)

    def _changes_nothing(self, handle: int, request: Request, count: int) -> bool:
        """Whether there is room for one more token, no block becomes full, none is given back."""
        if not self._is_sparing or count != 1:
            self._num_decoded.pop(handle, None)
            return False
        decoded = self._num_decoded[handle] = self._num_decoded.get(handle, 0) + 1
        past_border = request.num_computed_tokens % self._border
        return decoded > MARGIN and MARGIN <= past_border < self._border - MARGIN

    def _admit(self, handle: int, request: Request, count: int) -> KVCacheBlocks | None:
        blocks, num_tokens = self._matched.pop(handle, (self.manager.empty_kv_cache_blocks, 0))
        new = self.manager.allocate_slots(
            request,
            count,
            num_new_computed_tokens=num_tokens,
            new_computed_blocks=blocks,
            num_lookahead_tokens=self._num_lookahead_tokens,
            full_sequence_must_fit=True,
            has_scheduled_reqs=self._num_running > 0,
        )
        if new is not None:
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_tokens
            self._num_running += 1
        return new

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Record that tokens were computed."""
        for handle, count in zip(handles.tolist(), num_tokens.tolist(), strict=True):
            self._requests[handle].num_computed_tokens += count

    def preempt(self, handles: Handles) -> None:
        """Give back the requests' blocks."""
        for handle in handles.tolist():
            request = self._requests[handle]
            self.manager.free(request)
            request.status = RequestStatus.PREEMPTED
            request.num_computed_tokens = 0
            request.num_preemptions += 1
            self._num_decoded.pop(handle, None)
            self._num_running -= 1

    def free(self, handles: Handles) -> None:
        """Give back the requests' blocks and forget the requests."""
        for handle in handles.tolist():
            self.manager.free(self._requests.pop(handle))
            self._num_decoded.pop(handle, None)
            self._num_running -= 1

    # --- memory -------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks without the null block."""
        return self._pool.num_gpu_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner, cached ones included."""
        return self._pool.get_num_free_blocks()

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""
        return (self.num_blocks - self.num_free_blocks,)

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks with an owner, padding included."""
        return (self.num_blocks - self.num_free_blocks) * self._block_bytes

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
        return self._longest
