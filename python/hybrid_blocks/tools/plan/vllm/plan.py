"""vLLM's plan: one pool of equal blocks for all groups.

Follows ``get_kv_cache_configs`` and ``get_kv_cache_capacity`` (0.33).
"""

import msgspec

from hybrid_blocks.arithmetic import requests_that_fit
from hybrid_blocks.geometry.deployment import Deployment, stages
from hybrid_blocks.model import Layer, Model, PlanError, Rank
from hybrid_blocks.model.layer import FullAttention, SparseIndex, State
from hybrid_blocks.tools.plan.vllm import align, grouping
from hybrid_blocks.tools.plan.vllm.grouping import Member, VllmGroup, group
from hybrid_blocks.tools.plan.vllm.spec import Spec, layer_spec, ring_spec, state_spec
from hybrid_blocks.units import human


class VllmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's cache for ``memory_bytes`` of free memory on each GPU.

    ``groups`` are those of the whole model; ``widest_stage`` what the pipeline stage with the
    widest block holds of them. ``block_tokens`` is the attention block, ``block_bytes`` what one
    block of the pool takes on that stage, and ``stage_block_bytes`` on each. ``decode_tokens`` are
    scheduled for each request in a decode step, ``step_tokens`` at most for all together, and
    ``in_flight_tokens`` in the steps that are under way.
    """

    groups: tuple[VllmGroup, ...]
    widest_stage: tuple[VllmGroup, ...]
    block_tokens: int
    block_bytes: int
    stage_block_bytes: tuple[int, ...]
    num_blocks: int
    memory_bytes: int
    max_model_len: int
    decode_tokens: int
    step_tokens: int
    in_flight_tokens: int

    def blocks_per_request(self, length: int) -> int:
        """Blocks that vLLM reckons with for a request of ``length`` tokens when it starts."""
        return sum(group.spec.blocks(length, self.in_flight_tokens) for group in self.groups)

    def decode_blocks(self, length: int) -> int:
        """Most blocks that a request holds while it decodes up to ``length`` tokens."""
        return sum(group.spec.decode_blocks(length, self.decode_tokens) for group in self.groups)

    def prefill_blocks(self, length: int) -> int:
        """Most blocks that a request holds while its prompt of ``length`` tokens is computed."""
        return sum(
            group.spec.prefill_blocks(length, self.in_flight_tokens, self.step_tokens)
            for group in self.groups
        )

    def requests(self, length: int) -> int:
        """Most requests of ``length`` tokens that vLLM's manager runs at once.

        The last one is admitted and computes its prompt while all others decode. The null block
        belongs to no request; no watermark is kept free (vLLM's default).
        """
        return int(self.concurrency(length))

    def concurrency(self, length: int) -> float:
        """`requests` with a fraction: what is left over one more decoding request."""
        first, other = self.prefill_blocks(length), self.decode_blocks(length)
        return requests_that_fit(self.num_blocks - 1, first, other)

    @property
    def max_concurrency(self) -> float:
        """Requests of the maximum length, as vLLM logs it: blocks / `blocks_per_request`."""
        return self.num_blocks / self.blocks_per_request(self.max_model_len)

    @property
    def tokens(self) -> int:
        """Token capacity as vLLM logs it: groups that do not grow count once for each request."""
        return int(self.max_concurrency * self.max_model_len)

    def needed_bytes(self, length: int) -> int:
        """Memory without which vLLM does not start for requests of ``length`` tokens."""
        return (self.blocks_per_request(length) + 1) * self.block_bytes

    def longest(self) -> int:
        """Longest single request that fits beside the null block, at most the maximum; 0 if none.

        vLLM refuses to start where this is below the maximum.
        """
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.blocks_per_request(middle) < self.num_blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    @property
    def starts(self) -> bool:
        """Whether vLLM starts: one request of the maximum length fits."""
        return self.longest() == self.max_model_len

    @property
    def state_slots(self) -> int | None:
        """Blocks of every state group that fit while nothing else is held; None without such."""
        groups = sum(group.spec.kind == "mamba" for group in self.groups)
        return (self.num_blocks - 1) // groups if groups else None

    @property
    def cuda_graph_batch(self) -> int | None:
        """Largest ``max_num_seqs`` for which vLLM captures full CUDA graphs.

        ``CompilationConfig.resolve_cudagraph_mode_and_sizes`` compares it with the pool's blocks,
        the null block included. None for models without recurrent layers, which are not checked.
        """
        return None if self.state_slots is None else self.num_blocks

    @property
    def padding_layers(self) -> int:
        """Empty layers that make the groups equal."""
        return sum(group.padding_layers for group in self.groups)


def plan_vllm(model: Model, memory_bytes: int, deployment: Deployment) -> VllmPlan:
    """Work out what vLLM makes of ``memory_bytes`` of free KV memory on each GPU.

    Raises:
        PlanError: vLLM cannot group these layers, or the memory holds no block.
    """
    rank = deployment.rank(model)
    length = deployment.length(model)
    block_tokens = align.block_size(model, rank, deployment)
    layers = model.active_layers(deployment.num_speculative_tokens)
    alignment = align.alignment(model, deployment)

    def state(size: int) -> Spec:
        return state_spec(size, block_tokens, deployment, length, alignment)

    members = tuple(
        Member(
            layer,
            state(layer.cache.state_bytes(rank))
            if isinstance(layer.cache, State)
            else layer_spec(layer, deployment.rank_of(layer, model), block_tokens),
        )
        for layer in layers
    )
    by_depth = {layer.depth: layer for layer in layers}
    members += tuple(
        Member(by_depth[convolution.depth], state(convolution.state_bytes(rank)))
        for convolution in model.convolutions
    )
    if model.is_hybrid:
        page = block_tokens * align.token_bytes(model, rank)
        members = tuple(
            Member(m.layer, m.spec.with_page(page)) if m.spec.kind == "mamba" else m
            for m in members
        )
    if model.index is None:
        groups = group(members)
    else:
        groups = grouping.group_packed(_with_index(members, model.index, rank))
    cut = stages(model, layers, deployment.pp, deployment.pp_partition)
    held = [_on_stage(groups, stage) for stage in cut]
    widest = max(held, key=_block_bytes)
    block_bytes = _block_bytes(widest)
    num_blocks = memory_bytes // block_bytes
    if num_blocks < 1:
        raise PlanError(f"{human(memory_bytes)} hold no vLLM block of {human(block_bytes)}")
    return VllmPlan(
        groups=groups,
        widest_stage=widest,
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        stage_block_bytes=tuple(map(_block_bytes, held)),
        num_blocks=num_blocks,
        memory_bytes=memory_bytes,
        max_model_len=length,
        decode_tokens=1 + deployment.num_speculative_tokens,
        step_tokens=deployment.max_num_batched_tokens,
        in_flight_tokens=deployment.in_flight_tokens,
    )


def _with_index(members: tuple[Member, ...], index: SparseIndex, rank: Rank) -> tuple[Member, ...]:
    """Put the index's keys beside the full layers, and add a ring for each of these layers."""
    ring = ring_spec(index, rank)
    full = tuple(member for member in members if member.spec.kind == FullAttention.kind)
    return (
        *(
            Member(m.layer, m.spec.beside(index.bytes_of(m.spec.block_tokens)))
            if m.spec.kind == FullAttention.kind
            else m
            for m in members
        ),
        *(Member(member.layer, ring) for member in full),
    )


def _on_stage(groups: tuple[VllmGroup, ...], stage: tuple[Layer, ...]) -> tuple[VllmGroup, ...]:
    """Cut groups down to the layers of one pipeline stage."""
    layers = set(stage)
    return tuple(
        VllmGroup(tuple(member for member in group.members if member.layer in layers))
        for group in groups
    )


def _block_bytes(groups: tuple[VllmGroup, ...]) -> int:
    """Bytes of a block of the pool: those of the widest group."""
    return max(group.page_bytes for group in groups)
