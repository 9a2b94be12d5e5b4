"""States between columns on a CPU: what vLLM's kernels for drafts beside a prefix cache do.

vLLM moves states of models with drafts by Triton kernels that its CPU build has nothing in place
of. These two copy the same bytes: `precopy_mamba_align_fused_kernel` and
`postprocess_mamba_fused_kernel` of ``vllm/v1/worker/mamba_utils.py``.
"""

from ctypes import c_int32, memmove, sizeof
from typing import Any

from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext


def install() -> None:
    """Let vLLM's first model runner move states on a CPU."""
    context: Any = MambaSpecDecodeGPUContext
    context.run_fused_precopy = _before_step
    context.run_fused_postprocess = _after_step


def _before_step(
    self: Any,
    *,
    num_reqs: int,
    state_idx_gpu: Any,
    src_col_gpu: Any,
    token_bias_gpu: Any,
    idx_mapping: Any,
) -> None:
    assert idx_mapping is None
    columns = zip(
        *(column[:num_reqs].tolist() for column in (src_col_gpu, state_idx_gpu, token_bias_gpu)),
        strict=True,
    )
    for row, (source, target, bias) in enumerate(columns):
        if source >= 0 and source != target:
            _move(self, row, source, target, bias)


def _after_step(
    self: Any,
    *,
    num_reqs: int,
    num_accepted_tokens_gpu: Any,
    mamba_state_idx_gpu: Any,
    num_scheduled_tokens_gpu: Any,
    num_computed_tokens_gpu: Any,
    num_draft_tokens_gpu: Any,
) -> None:
    self.num_accepted_tokens_out[:num_reqs] = num_accepted_tokens_gpu[:num_reqs]
    counts = (
        num_accepted_tokens_gpu,
        mamba_state_idx_gpu,
        num_scheduled_tokens_gpu,
        num_computed_tokens_gpu,
        num_draft_tokens_gpu,
    )
    rows = zip(*(count[:num_reqs].tolist() for count in counts), strict=True)
    for row, (accepted, source, scheduled, computed, drafts) in enumerate(rows):
        running = computed + scheduled - drafts
        aligned = (running + accepted - 1) // self.block_size * self.block_size
        if aligned < running:
            continue
        bias, target = aligned - running, aligned // self.block_size - 1
        if source == target:
            self.num_accepted_tokens_out[row] = 1
        if (source, bias) != (target, 0):
            _move(self, row, source, target, bias)


def _move(context: Any, row: int, source: int, target: int, bias: int) -> None:
    """Copy every state of a request between columns, ``bias`` tokens on."""

    def block(group: int, column: int) -> int:
        table = context.block_table_ptrs[group].item()
        at = (row * context.block_table_stride_req + column) * sizeof(c_int32)
        return c_int32.from_address(table + at).value

    for state in range(context.num_states):
        group = context.state_group_indices[state].item()
        base = context.state_base_addrs[state].item()
        stride = context.state_block_strides[state].item()
        size = context.state_elem_sizes[state].item()
        inner = context.state_inner_sizes[state].item() * size
        width = context.state_conv_widths[state].item()
        to = base + block(group, target) * stride
        if not width:
            memmove(to, base + block(group, source + bias) * stride, inner)
            continue
        start = base + block(group, source) * stride
        num_rows = context.state_dim_row_count[state].item()
        if num_rows:  # one row a channel, tokens within it
            step = context.state_dim_row_stride[state].item()
            for channel in range(num_rows):
                at = channel * step
                memmove(to + at, start + at + bias * size, (width - bias) * size)
        else:
            memmove(to, start + bias * inner, (width - bias) * inner)
