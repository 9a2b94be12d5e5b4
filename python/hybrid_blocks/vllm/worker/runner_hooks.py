"""The hooks in vLLM's model runners by which state layers get the pieces of a step.

Both runners build the metadata of a batch before its forward, by `AttentionGroup.build_metadata`.
They are hooked where they know the batch's requests. A step without checkpoints runs as vLLM's own.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from hybrid_blocks.vllm.worker import prefill_checkpoint, state_layers
from hybrid_blocks.vllm.worker.pieces import (
    ATTRIBUTE,
    BY_ROW_OF_BUILDERS,
    Piece,
    as_prefills,
    cut,
    part_of,
)
from hybrid_blocks.vllm.worker.prefill_checkpoint import Step

FIRST_RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
SECOND_RUNNER: Final = "vllm.v1.worker.gpu.model_states.mamba_hybrid"

_STEP: ContextVar[Step | None] = ContextVar("_STEP", default=None)
_UNDO: list[Callable[[], None]] = []


def install() -> None:
    """Hook the runners that are loaded. A second call hooks those that came since."""
    hooks = (
        ("vllm.v1.worker.utils", "AttentionGroup", "build_metadata", _build_metadata),
        (FIRST_RUNNER, "GPUModelRunner", "_build_attention_metadata", _by_first_runner),
        (FIRST_RUNNER, "GPUModelRunner", "_is_uniform_decode", _never_decode),
        (SECOND_RUNNER, "MambaHybridModelState", "prepare_attn", _by_second_runner),
    )
    for module, kind, name, hooked in hooks:
        if (owner := getattr(sys.modules.get(module), kind, None)) is None:
            continue
        real = vars(owner)[name]
        if not hasattr(_plain(real), "hybrid_blocks_hooks"):
            ours = hooked(_plain(real))
            ours.hybrid_blocks_hooks = real
            is_static = isinstance(real, staticmethod)
            setattr(owner, name, staticmethod(ours) if is_static else ours)
            _UNDO.append(partial(setattr, owner, name, real))


def _plain(method: Any) -> Any:
    return getattr(method, "__func__", method)


def uninstall() -> None:
    """Put vLLM's own methods back, in runners and layers."""
    while _UNDO:
        _UNDO.pop()()
    state_layers.uninstall()


def _by_first_runner(real: Any) -> Any:
    def build_attention_metadata(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _step_of(self.vllm_config, self.attn_groups, self.input_batch.req_ids):
            return real(self, *args, **kwargs)

    return build_attention_metadata


def _by_second_runner(real: Any) -> Any:
    def prepare_attn(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        groups = kwargs["attn_groups"] if "attn_groups" in kwargs else args[3]
        with _step_of(self.vllm_config, groups, input_batch.req_ids):
            return real(self, input_batch, *args, **kwargs)

    return prepare_attn


def _never_decode(real: Any) -> Any:
    """Return a test for a decode's graph, which no step passes whose layers run in pieces."""

    def is_uniform_decode(*args: Any, **kwargs: Any) -> bool:
        return bool(real(*args, **kwargs)) and not prefill_checkpoint.is_any_due()

    return is_uniform_decode


@contextmanager
def _step_of(vllm_config: Any, attn_groups: Any, request_ids: Iterable[str]) -> Iterator[None]:
    """Let groups cut the batch whose metadata is built inside, if its step has checkpoints."""
    groups = [group for groups in attn_groups for group in groups]
    layers = vllm_config.compilation_config.static_forward_context
    # A layer's tensors, or the first block of its only one, lie in the runner's allocation.
    first = layers[groups[0].layer_names[0]].kv_cache[0] if groups else None
    step = None if first is None else prefill_checkpoint.take(first)
    if step is None:
        yield
        return
    step.begin(request_ids)
    token = _STEP.set(step)
    try:
        with ExitStack() as changes:
            for group in groups:
                # Metadata that a group takes over from another has no pieces of its own.
                builder = group.get_metadata_builder(0)
                changes.enter_context(_changed(builder, supports_update_block_table=False))
            yield
    finally:
        _STEP.reset(token)


def _build_metadata(real: Any) -> Any:
    def build_metadata(
        self: Any,
        common_attn_metadata: Any,
        ubatch_idx: int = 0,
        common_prefix_len: int = 0,
        **kwargs: Any,
    ) -> Any:
        whole = real(self, common_attn_metadata, ubatch_idx, common_prefix_len, **kwargs)
        step = _STEP.get()
        if step is not None and (due := step.of_group(self.kv_cache_group_id)):
            pieces = list(_pieces(self, common_attn_metadata, due, step, kwargs))
            setattr(whole, ATTRIBUTE, pieces)
            step.expect(len(self.layer_names) * sum(map(len, due.values())))
        return whole

    return build_metadata


def _pieces(
    group: Any, batch: Any, due: Any, step: Step, kwargs: dict[str, Any]
) -> Iterator[Piece]:
    builder = group.get_metadata_builder(0)
    starts = batch.query_start_loc_cpu.tolist()
    lengths = batch.seq_lens_cpu_upper_bound.tolist()
    cuts = list(cut(starts, lengths, batch.num_actual_tokens, due))
    batch = as_prefills(batch, list(due))
    aligned = getattr(builder, "mamba_aligned_state_indices", None)
    for one in cuts:
        rows = one.rows
        own = {
            name: value[rows] if name in BY_ROW_OF_BUILDERS and value is not None else value
            for name, value in kwargs.items()
        }
        # Graphs of decodes read buffers that the builder would write for a piece of decodes.
        changes = {"decode_cudagraph_max_bs": -1}
        if aligned is not None:
            # Builders read these from row 0 on.
            changes["mamba_aligned_state_indices"] = aligned[rows]
        with _changed(builder, **changes):
            metadata = builder.build(0, part_of(batch, one), **own)
        yield Piece(one, metadata, is_last=one is cuts[-1], step=step)


@contextmanager
def _changed(target: Any, **values: Any) -> Iterator[None]:
    """Let attributes of an object have other values inside."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    vars(target).update(values)
    try:
        yield
    finally:
        for name in values:
            vars(target).pop(name, None)
        vars(target).update(before)
