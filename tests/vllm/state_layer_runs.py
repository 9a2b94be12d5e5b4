"""State layers of vLLM, in pieces and in chunks that end at the same places.

On a card or, without one, in Triton's interpreter, which is chosen before kernels are read: so this
is a program of its own. ``test_state_layer_runs.py`` starts it, and ``benches/states`` on a card.

Each layer has random weights, and its method calls vLLM's own code but for two things. Weights
multiply a token at a time, so that no product rounds by the size of its batch. Without a card a
loop stands for the CUDA kernel of Mamba-1's scan, and indexing for two kernels of whole rows.
"""

import json
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from hybrid_blocks.vllm.worker import pieces, runner_hooks, state_layers
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint, Step
from torch import nn
from triton.runtime import interpreter
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.model_executor.layers.mamba.ops import ssu_dispatch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import MambaSpec

DEVICE = torch.device(os.environ.get("HYBRID_BLOCKS_TEST_DEVICE", "cpu"))
IS_CARD = DEVICE.type == "cuda"

_made = interpreter.GridExecutor.__init__

HEADS, HEAD, WIDTH, CHUNK = 2, 32, 4, 64
"""Heads, numbers a head, tokens that a convolution sees, and tokens of a kernel's chunk."""

ROWS = ((20, 1, ()), (0, 150, (1, 33, 35, 38, 64, 107, 149)), (40, 70, (1, 3, 6, 24, 69)))
"""Rows of the batch: tokens computed before, tokens of the step, offsets of checkpoints in them."""

NUM_DRAFTS = int(os.environ.get("NUM_DRAFTS", "0"))
"""Drafts of the first row, which decodes; all but one are right."""

NUM_SLOTS = 30


@dataclass
class Case:
    """A layer, the builder of its metadata, and the axis of tokens and numbers of each argument."""

    layer: Any
    method: str
    builder: Any
    states: list[tuple[int, ...]]
    arguments: dict[str, tuple[int, tuple[int, ...]]]
    output: str
    dtype: torch.dtype = torch.float32
    """Type of the arguments; recurrent states are float32."""
    first_token: bool = True
    """Whether a request's first token may be a piece of its own."""


def layer_of(path: str, **attributes: Any) -> Any:
    """Return a layer that no configuration describes, with what its method reads."""
    module, _, name = path.partition(":")
    kind = getattr(import_module(module), name)
    layer = object.__new__(kind)
    nn.Module.__init__(layer)
    for key, value in (attributes | {"prefix": "layer", "tp_size": 1}).items():
        setattr(layer, key, value)
    return layer


def rand(*shape: int) -> torch.Tensor:
    scaled: torch.Tensor = randn(*shape) / float(shape[-1]) ** 0.5
    return scaled


def randn(*shape: int) -> torch.Tensor:
    drawn: torch.Tensor = torch.randn(*shape, device=DEVICE)
    return drawn


def linear(outputs: int, inputs: int) -> Any:
    """Return a projection whose result for a token does not follow from the others beside it."""
    weight = rand(outputs, inputs)
    return lambda x: (torch.stack([weight @ row for row in x]), None)


def convolution(channels: int) -> Any:
    return SimpleNamespace(weight=rand(channels, 1, WIDTH), bias=None)


def configuration() -> Any:
    full = SimpleNamespace(has_full_cudagraphs=lambda: False)
    compilation = SimpleNamespace(cudagraph_mode=full, max_cudagraph_capture_size=None)
    replay = dict.fromkeys(("use_replayssm", "replayssm_buffer_len"), 0)
    cache = SimpleNamespace(mamba_cache_mode="none", mamba_block_size=1 << 20, **replay)
    cache.enable_mamba_shared_prefix_checkpoint = False
    model = SimpleNamespace(get_mamba_chunk_size=lambda: CHUNK, dtype=torch.float32)
    model.hf_text_config = SimpleNamespace()
    return SimpleNamespace(
        compilation_config=compilation,
        speculative_config=None,
        num_speculative_tokens=0,
        use_v2_model_runner=False,
        cache_config=cache,
        mamba_config=SimpleNamespace(backend=None),
        scheduler_config=SimpleNamespace(max_num_seqs=8, async_scheduling=False),
        model_config=model,
        parallel_config=SimpleNamespace(),
        additional_config={},
    )


def builder_of(path: str, **attributes: Any) -> Any:
    module, _, name = path.partition(":")
    spec = MambaSpec(block_size=1 << 20, shapes=((1,),), dtypes=(torch.float32,))
    made = object.__new__(getattr(import_module(module), name))
    absent = ["use_full_cuda_graph", "use_replayssm", "use_recoverssm", "use_flashinfer_prefill"]
    absent += ["use_flashinfer_replayssm", "plan_flashinfer_checkpoints"]
    values: dict[str, Any] = {
        **dict.fromkeys(absent, False),
        "kv_cache_spec": spec,
        "layer_names": ["layer"],
        "vllm_config": configuration(),
        "device": DEVICE,
        "compilation_config": configuration().compilation_config,
        "num_spec": NUM_DRAFTS,
        "num_spec_tokens": NUM_DRAFTS,
        "use_spec_decode": NUM_DRAFTS > 0,
        "spec_state_slots": 1 + NUM_DRAFTS,
        "speculative_config": object() if NUM_DRAFTS else None,
        "decode_cudagraph_max_bs": 8,
        "decode_bc_pre_scratch": None,
        "checkpoint_builder": SimpleNamespace(build=lambda *_: None),
        "gdn_prefill_backend": "triton",
        "chunk_size": CHUNK,
        "reorder_batch_threshold": 1 + NUM_DRAFTS,
    }
    vars(made).update(values | attributes)
    return made


GDN_BUILDER = "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder"
GATED = HEADS * HEAD


def mamba2(heads: int = HEADS, head: int = HEAD, groups: int = 1, state: int = 16) -> Case:
    inner, part = heads * head, groups * state
    conv = inner + 2 * part
    sizes = {"num_heads": heads, "head_dim": head, "n_groups": groups, "ssm_state_size": state}
    sizes |= {"tped_intermediate_size": inner, "tped_conv_size": conv, "tped_dt_size": heads}
    layer = layer_of(
        "vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2",
        **sizes,
        cache_config=object(),
        num_spec=NUM_DRAFTS,
        use_replayssm=False,
        mamba_config=SimpleNamespace(backend=None),
        conv_weights=rand(conv, WIDTH),
        conv1d=convolution(conv),
        activation="silu",
        split_hidden_states_B_C_fn=lambda x: torch.split(x, [inner, part, part], dim=-1),
        is_blackwell=False,
        conv_kernel_size=WIDTH,
        A=-torch.rand(heads, device=DEVICE),
        D=randn(heads),
        dt_bias=randn(heads),
    )
    return Case(
        layer,
        "conv_ssm_forward",
        builder_of("vllm.v1.attention.backends.mamba2_attn:Mamba2AttentionMetadataBuilder"),
        [(WIDTH - 1, conv), (heads, head, state)],
        {"projected_states": (0, (inner + conv + heads,)), "output": (0, (inner,))},
        "output",
    )


def gated(path: str, heads: tuple[int, int] = (HEADS, HEADS), head: int = HEAD, **own: Any) -> Case:
    """Return a layer of Qwen's or OLMo's gated delta rule, with heads of keys and of values."""
    keys, values = heads
    channels = (2 * keys + values) * head
    sizes = {"num_k_heads": keys, "head_k_dim": head, "key_dim": keys * head}
    sizes |= {"num_v_heads": values, "head_v_dim": head, "value_dim": values * head}
    layer = layer_of(
        path,
        activation="silu",
        conv1d=convolution(channels),
        A_log=torch.rand(values, device=DEVICE),
        dt_bias=randn(values),
        **sizes,
        **own,
    )
    return Case(
        layer,
        "_forward_core",
        builder_of(GDN_BUILDER),
        [(WIDTH - 1, channels), (values, head, head)],
        {"mixed_qkv": (0, (channels,)), **dict.fromkeys("ba", (0, (values,)))}
        | {"core_attn_out": (0, (values, head))},
        "core_attn_out",
        torch.bfloat16,
    )


QWEN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention"


def without(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a function that leaves out arguments that another one does not take."""
    return lambda **given: function(**{key: given[key] for key in given.keys() - {*names}})


def qwen(heads: tuple[int, int] = (HEADS, HEADS), head: int = HEAD) -> Case:
    from vllm.third_party.flash_linear_attention.ops import chunk_gated_delta_rule  # noqa: PLC0415

    rule = without(chunk_gated_delta_rule, "aiter_prefill_metadata")
    more = {"enable_packed_recurrent_decode": False, "chunk_gated_delta_rule": rule}
    return gated(QWEN, heads, head, **more)


def qwen_flashinfer(heads: tuple[int, int] = (HEADS, HEADS)) -> Case:
    own: Any = import_module(QWEN.partition(":")[0]).fi_chunk_gated_delta_rule
    rule = without(own, "chunk_indices", "chunk_offsets", "aiter_prefill_metadata")
    more = {"enable_packed_recurrent_decode": False, "chunk_gated_delta_rule": rule}
    case = gated(QWEN, heads, 128, **more)
    vars(case.builder)["gdn_prefill_backend"] = "flashinfer"
    return case


def olmo() -> Case:
    path = "vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn"
    return gated(f"{path}:OlmoHybridGatedDeltaNetAttention", allow_neg_eigval=True)


def kda(
    path: str,
    builder: str,
    own: dict[str, tuple[int, ...]],
    dtype: torch.dtype = torch.bfloat16,
    **attributes: Any,
) -> Case:
    """Return a layer of Kimi's delta rule; ``own`` are the shapes of its own arguments."""
    sizes = {"head_dim": HEAD, "num_heads": HEADS, "local_num_heads": HEADS}
    layer = layer_of(path, local_projection_size=GATED, **sizes, **attributes)
    arguments = {name: (0, shape) for name, shape in own.items()}
    heads = (1, (HEADS, HEAD))
    arguments |= {"g1": heads, "beta": (1, (HEADS,)), "core_attn_out": heads}
    states = [(WIDTH - 1, 3 * GATED), (HEADS, HEAD, HEAD)]
    return Case(layer, "_forward", builder_of(builder), states, arguments, "core_attn_out", dtype)


def kimi_k3() -> Case:
    names = ("kda_spec_decode_backend", "kda_decode_backend", "kda_prefill_backend")
    backends: dict[str, Any] = dict.fromkeys(names, "triton")
    return kda(
        "vllm.models.kimi_k3.nvidia.kda:KimiK3DeltaAttention",
        "vllm.models.kimi_k3.nvidia.kda_metadata:KimiK3KDAMetadataBuilder",
        {"mixed_qkv": (3 * GATED,), "g2": (HEADS, HEAD)},
        **backends,
        gate_lower_bound=-5.0,
        use_recoverssm=False,
        conv1d=convolution(3 * GATED),
        A_log=torch.rand(HEADS, device=DEVICE),
        dt_bias=randn(GATED),
        o_norm=lambda x, gate: x * torch.sigmoid(gate),
    )


def glm() -> Case:
    return kda(
        "vllm.models.glm5next.common.kda:Glm5NextLinearAttention",
        GDN_BUILDER,
        {"qkv_proj_states": (3 * GATED,)},
        **{f"{it}_conv1d": convolution(GATED) for it in "qkv"},
        _merged_conv_weight=None,
        _conv_state_dim_first=False,
        kda_safe_gate=True,
        kda_lower_bound=-5.0,
        kda_prefill_backend="triton",
        A_log=torch.rand(1, 1, HEADS, 1, device=DEVICE),
        dt_bias=randn(GATED),
    )


def bailing_v3() -> Case:
    return kda(
        "vllm.model_executor.models.bailing_moe_v3:BailingMoeV3KimiDeltaAttention",
        GDN_BUILDER,
        {f"{it}_proj_states": (GATED,) for it in "qkv"},
        torch.float32,
        q_conv1d=convolution(GATED),
        k_conv1d=convolution(GATED),
        v_conv1d=convolution(GATED),
        safe_gate=True,
        lower_bound=-5.0,
    )


def mamba1() -> Case:
    mamba_mixer: Any = import_module("vllm.model_executor.layers.mamba.mamba_mixer")

    hidden, inner, size, rank = 24, GATED, 16, 8
    if not IS_CARD:
        mamba_mixer.selective_scan_fn = selective_scan
    dt_proj: Any = nn.Identity()
    dt_proj.forward = linear(inner, rank)
    dt_proj.bias = randn(inner)
    layer = layer_of(
        "vllm.model_executor.layers.mamba.mamba_mixer:MambaMixer",
        cache_config=object(),
        in_proj=linear(2 * inner, hidden),
        x_proj=linear(rank + 2 * size, inner),
        dt_proj=dt_proj,
        out_proj=linear(hidden, inner),
        conv1d=convolution(inner),
        activation="silu",
        is_lora_enabled=False,
        use_rms_norm=False,
        time_step_rank=rank,
        ssm_state_size=size,
        A=-torch.rand(inner, size, device=DEVICE),
        D=randn(inner),
    )
    return Case(
        layer,
        "forward_impl",
        builder_of("vllm.v1.attention.backends.mamba1_attn:Mamba1AttentionMetadataBuilder"),
        [(WIDTH - 1, inner), (inner, size)],
        {"hidden_states": (0, (hidden,)), "output": (0, (hidden,))},
        "output",
    )


def selective_scan(*given: Any, cache_indices: Any, has_initial_state: Any, **more: Any) -> Any:
    """Scan as the CUDA kernel is specified to, a token at a time."""
    u, states, delta, A, B, C, D, z, bias = given  # noqa: N806 - the kernel's own names
    delta = torch.nn.functional.softplus(delta + bias[:, None])
    out = torch.empty_like(u)
    for row, (begin, end) in enumerate(pairwise(more["query_start_loc"].tolist())):
        slot = int(cache_indices[row])
        state = states[slot].clone() if has_initial_state[row] else torch.zeros_like(states[slot])
        for at in range(begin, end):
            step = delta[:, at, None]
            state = state * torch.exp(step * A) + step * B[:, at] * u[:, at, None]
            out[:, at] = (state * C[:, at]).sum(-1) + D * u[:, at]
        states[slot] = state
    return out * torch.nn.functional.silu(z)


def short_conv() -> Case:
    hidden = 48
    own = {"in_proj": linear(3 * hidden, hidden), "out_proj": linear(hidden, hidden)}
    path = "vllm.model_executor.layers.mamba.short_conv:ShortConv"
    layer = layer_of(path, conv=convolution(hidden), **own)
    return Case(
        layer,
        "forward_cuda",
        builder_of("vllm.v1.attention.backends.short_conv_attn:ShortConvAttentionMetadataBuilder"),
        [(WIDTH - 1, hidden)],
        {"hidden_states": (0, (hidden,)), "output": (0, (hidden,))},
        "output",
    )


LIGHTNING = 64
"""Numbers a head: the kernel takes no fewer."""


def lightning(path: str, builder: str, hidden: int, **attributes: Any) -> Case:
    slope = torch.tensor([0.1, 0.4], device=DEVICE).view(HEADS, 1, 1)
    sizes = {"head_dim": LIGHTNING, "tp_heads": HEADS, "layer_idx": 0, "BLOCK": 256}
    layer = layer_of(path, tp_slope=slope, **sizes, **attributes)
    made = builder_of(f"vllm.v1.attention.backends.linear_attn:{builder}")
    arguments = {"hidden_states": (0, (hidden,)), "output": (0, (hidden,)), "positions": (0, ())}
    state = (HEADS, LIGHTNING, LIGHTNING)
    return Case(layer, "_forward", made, [state], arguments, "output", first_token=False)


def minimax() -> Case:
    hidden, inner = 24, HEADS * LIGHTNING
    return lightning(
        "vllm.model_executor.layers.mamba.linear.minimax_linear_attn:MiniMaxText01LinearAttention",
        "LinearAttentionMetadataBuilder",
        hidden,
        qkv_proj=linear(3 * inner, hidden),
        norm=SimpleNamespace(_forward=lambda x: x),
        output_gate=linear(inner, hidden),
        out_proj=linear(hidden, inner),
    )


def bailing() -> Case:
    hidden, inner = 24, HEADS * LIGHTNING
    return lightning(
        "vllm.model_executor.layers.mamba.linear.bailing_linear_attn:BailingMoELinearAttention",
        "BailingLinearAttentionMetadataBuilder",
        hidden,
        query_key_value=linear(3 * inner, hidden),
        **dict.fromkeys(("linear_silu", "linear_rope", "linear_scale"), True),
        use_qk_norm=False,
        q_size_per_rank=inner,
        kv_size_per_rank=inner,
        tp_kv_heads=HEADS,
        rotary_emb=lambda at, q, k: (q * torch.cos(at)[:, None], k * torch.sin(at)[:, None]),
        scaling=LIGHTNING**-0.5,
        g_proj=linear(inner, hidden),
        group_norm_size=1,
        g_norm=lambda x: x,
        dense=linear(hidden, inner),
    )


CASES: tuple[Callable[[], Case], ...] = (
    *(mamba2, qwen, olmo, kimi_k3, glm, bailing_v3, mamba1, short_conv, minimax, bailing),
    *((qwen_flashinfer,) if IS_CARD else ()),
)

Part = tuple[int, int, int, int]
"""A row's number, its slot, tokens computed before, and tokens of the step."""


def batch_of(parts: list[Part]) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *accumulate(part[3] for part in parts)], dtype=torch.int32)
    lengths = torch.tensor([part[2] + part[3] for part in parts], dtype=torch.int32)
    num_tokens = int(starts[-1])
    tables = [[part[1] + column for column in range(1 + NUM_DRAFTS)] for part in parts]
    return CommonAttentionMetadata(
        query_start_loc=starts.to(DEVICE),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(DEVICE),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(parts),
        num_actual_tokens=num_tokens,
        max_query_len=int(starts.diff().max()),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.tensor(tables, dtype=torch.int32, device=DEVICE),
        slot_mapping=torch.arange(num_tokens, device=DEVICE),
        positions=torch.arange(num_tokens, device=DEVICE),
        is_prefilling=torch.tensor([part[0] > 0 for part in parts]),
    )


def drafts_of(parts: list[Part]) -> dict[str, Any]:
    """Return the drafts for builders: the first row has some, one of them wrong."""
    if not NUM_DRAFTS:
        return {}
    drafts = torch.tensor([-1 if part[0] else NUM_DRAFTS for part in parts], dtype=torch.int32)
    accepted = torch.where(drafts < 0, 1, NUM_DRAFTS).to(torch.int32)
    return {"num_accepted_tokens": accepted.to(DEVICE), "num_decode_draft_tokens_cpu": drafts}


def rows_of(case: Case) -> list[tuple[int, int, list[int]]]:
    """Return the rows with their checkpoints, without those that the layer cannot leave."""

    def left(before: int, offsets: tuple[int, ...]) -> list[int]:
        return [at for at in offsets if case.first_token or before + at > 1]

    rows = [(before, count, left(before, offsets)) for before, count, offsets in ROWS]
    before, _, none = rows[0]
    return [(before, 1 + NUM_DRAFTS, none), *rows[1:]]


def slots(case: Case) -> tuple[torch.Tensor, ...]:
    """Return states with another layer's bytes in between; all hold what others left there."""
    found = []
    for one in case.states:
        is_window = len(one) == 2 and one[0] == WIDTH - 1
        dtype = case.dtype if is_window else torch.float32
        # Inputs of drafts lie behind those that a convolution looks back at.
        shape = (one[0] + NUM_DRAFTS, *one[1:]) if is_window else one
        size = int(np.prod(shape))
        arena = randn(NUM_SLOTS, 2 * size).to(dtype)
        found.append(arena[:, :size].unflatten(1, shape))
    return tuple(found)


def call(case: Case, metadata: Any, arguments: dict[str, torch.Tensor], method: Any) -> None:
    context = ForwardContext({}, {"layer": metadata}, {})
    with override_forward_context(context):
        method(case.layer, **arguments)


def made(make: Callable[[], Case]) -> Case:
    """Return a case whose kernels can run here."""
    case = make()
    if not IS_CARD:
        mend_interpreter()
    rounding = SimpleNamespace(enable_stochastic_rounding=False)
    rounding.stochastic_rounding_philox_rounds = 0
    ssu_dispatch._mamba_ssu_backend = ssu_dispatch.TritonSSUBackend(rounding)  # type: ignore[arg-type]
    return case


@contextmanager
def hooked(case: Case) -> Iterator[None]:
    """Let the layer's method run in pieces, as level natural lets it."""
    row = state_layers.row_of(case.layer)
    assert row
    assert case.method in row.methods
    assert dict(row.tokens) == {name: axis for name, (axis, _) in case.arguments.items()}
    state_layers.install(case.layer, row)
    try:
        yield
    finally:
        state_layers.uninstall()


def arguments_of(case: Case, num_tokens: int) -> dict[str, torch.Tensor]:
    given = {
        name: randn(*((1,) * axis), num_tokens, *shape).to(case.dtype)
        for name, (axis, shape) in case.arguments.items()
    }
    given[case.output].zero_()
    return given


def run(make: Callable[[], Case]) -> dict[str, Any]:
    """Return what is equal between one step in pieces and steps that end at the places."""
    torch.manual_seed(3)
    case = made(make)
    kind = type(case.layer)
    answer: dict[str, Any] = {"class": f"{kind.__module__}:{kind.__qualname__}"}
    row = state_layers.row_of(case.layer)
    assert row
    if NUM_DRAFTS and not row.drafts:
        return answer | {"left_out": "chunks end at checkpoints beside drafts"}
    rows = rows_of(case)
    parts: list[Part] = [(at, 1 + 4 * at, *one[:2]) for at, one in enumerate(rows)]
    given = arguments_of(case, sum(count for _, count, _ in rows))
    before = slots(case)
    found: list[tuple[tuple[torch.Tensor, ...], torch.Tensor]] = []
    for in_pieces in (False, True):
        arguments = {name: tensor.clone() for name, tensor in given.items()}
        case.layer.kv_cache = tuple(strided(tensor) for tensor in before)
        if in_pieces:
            metadata, step = cut_of(case, parts, rows)
            with hooked(case):
                call(case, metadata, arguments, getattr(kind, case.method))
            step.check_written()
        else:
            in_chunks(case, parts, rows, arguments, getattr(kind, case.method))
        found.append((case.layer.kv_cache, arguments[case.output]))
    (chunked, expected), (cut, output) = found
    own = range(1, NUM_SLOTS)
    return answer | {
        "num_states": len(rows) + sum(len(offsets) for _, _, offsets in rows),
        "wrong_states": [
            slot
            for slot in own
            if not all(torch.equal(a[slot], b[slot]) for a, b in zip(chunked, cut, strict=True))
        ],
        "changed_states": sum(
            not all(torch.equal(a[slot], b[slot]) for a, b in zip(before, cut, strict=True))
            for slot in own
        ),
        "outputs_equal": torch.equal(expected, output),
        "is_finite": bool(torch.isfinite(output).all()) and bool(output.abs().sum() > 0),
    }


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of states between other layers' bytes."""
    like: Any = {"dtype": tensor.dtype, "device": tensor.device}
    copy = torch.empty_strided(tensor.shape, tensor.stride(), **like)
    return copy.copy_(tensor)


def kept_in(row: int, number: int) -> int:
    return 13 + 8 * (row - 1) + number


def in_chunks(
    case: Case, parts: list[Part], rows: Any, arguments: dict[str, torch.Tensor], method: Any
) -> None:
    """Step by step, one request at a time, keep the state wherever a chunk ends at a place."""
    begin = 0
    for (number, slot, before, count), (_, _, offsets) in zip(parts, rows, strict=True):
        bounds = [0, *offsets, count]
        for place, (first, last) in enumerate(pairwise(bounds)):
            one = (number, slot, before + first, last - first)
            part = batch_of([one])
            own = {
                name: tensor.narrow(case.arguments[name][0], begin + first, last - first)
                for name, tensor in arguments.items()
            }
            call(case, case.builder.build(0, part, **drafts_of([one])), own, method)
            if last < count:
                for tensor in case.layer.kv_cache:
                    tensor[kept_in(number, place)] = tensor[slot]
        begin += count


def cut_of(case: Case, parts: list[Part], rows: Any) -> tuple[Any, Step]:
    """Return the metadata of a step with its pieces, as the hooks of the runners build it."""
    due = {
        at: [
            PrefillCheckpoint(str(number), 0, before + offset, slot, kept_in(number, place))
            for place, offset in enumerate(offsets)
        ]
        for at, ((number, slot, before, _), (_, _, offsets)) in enumerate(
            zip(parts, rows, strict=True)
        )
        if offsets
    }
    step = Step([one for row in due.values() for one in row])
    step.begin(str(number) for number, *_ in parts)
    batch, drafts = batch_of(parts), drafts_of(parts)
    assert batch.is_prefilling is not None
    # As vLLM's first runner counts a request that computes its answer again.
    batch.is_prefilling[-1] = False
    whole = case.builder.build(0, batch, **drafts)
    group: Any = SimpleNamespace(get_metadata_builder=lambda _: case.builder)
    setattr(whole, pieces.ATTRIBUTE, list(runner_hooks._pieces(group, batch, due, step, drafts)))
    step.expect(sum(map(len, due.values())))
    return whole, step


def mend_interpreter() -> None:
    """Let kernels find the interpreter's functions, which replace those that their modules name.

    The interpreter counts loops in Python's numbers; some kernels ask a counter for its type.
    """
    platform: Any = current_platform
    platform.get_device_name = lambda *_: "none"
    names = ("exp", "exp2", "log", "log2", "gather")
    interpreter.GridExecutor.__init__ = _with_grid
    interpreter.InterpreterBuilder.get_bf16 = _bf16
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm."):
            continue
        if hasattr(module, "PIN_MEMORY"):
            vars(module)["PIN_MEMORY"] = False
        for function in names:
            if getattr(vars(module).get(function), "__module__", "").startswith("triton"):
                vars(module)[function] = partial(_late, function)
        if "delta_h" in name or "kda" in name:
            vars(module)["range"] = _range
        if name in GATHERING:
            vars(module).update(gather_initial_states=_gather, scatter_states=_scatter)


GATHERING = ("vllm.models.kimi_k3.nvidia.kda", "vllm.models.glm5next.common.kda")
"""Modules whose kernels for rows of states ask for a card."""


def _gather(states: Any, slots: Any, are_there: Any) -> Any:
    return torch.where(are_there[:, None, None, None], states[slots], 0)


def _scatter(states: Any, rows: Any, slots: Any) -> None:
    states[slots] = rows.to(states.dtype)


def _with_grid(self: Any, fn: Any, arg_names: Any, grid: Any, hooks: Any = ()) -> None:
    """As the interpreter's own, but for a grid that changes the arguments by which it is found."""
    own = (lambda args: grid(dict(args))) if callable(grid) else grid
    _made(self, fn, arg_names, own, list(hooks))


def _bf16(_: Any, value: float) -> Any:
    bits = torch.tensor([value]).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return interpreter.TensorHandle(bits, tl.bfloat16)


def _late(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(tl, name)(*args, **kwargs)


def _range(*bounds: Any) -> Iterator[Any]:
    for at in range(*map(operator.index, bounds)):
        try:
            yield tl.full((), at, tl.int32)
        except ValueError:  # outside a kernel
            yield at


def main(names: list[str], *, keeps_on: bool) -> None:
    """Print what is equal for each layer, those of ``names`` if there are any."""
    answers = []
    for make in CASES:
        if names and make.__name__ not in names:
            continue
        try:
            answer = run(make)
        except Exception as error:
            if not keeps_on:
                raise
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.append({"name": make.__name__, **answer})
        print(answers[-1], file=sys.stderr, flush=True)
    print(json.dumps({"answers": answers}), flush=True)


if __name__ == "__main__":
    given = set(sys.argv[1:])
    main(sorted(given - {"--keep-on"}), keeps_on="--keep-on" in given)
