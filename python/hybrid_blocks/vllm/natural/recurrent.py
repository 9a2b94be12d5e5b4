"""The tensor of a state that a checkpoint may keep in fewer bytes, as vLLM's specs describe it."""

from typing import Any

import torch

from hybrid_blocks.model.layer import StateFormat, StateTensor


def recurrent_tensor(spec: Any) -> StateTensor | None:
    """Return the tensor of a ``MambaSpec`` that may be converted: recurrent, of float32.

    It is the last one of a state. A convolution is a tensor before it, or all that a layer has.
    Specs name no layers, so `offload.state_parts`, which goes by a layer's class, cannot tell it.
    """
    is_alone = len(spec.shapes) == 1 and spec.mamba_type.name == "LINEAR"
    if not is_alone and len(spec.shapes) != 2:
        return None
    if spec.dtypes[-1] != torch.float32:
        return None
    return StateTensor("recurrent", spec.shapes[-1], "float32")


def heads_of(spec: Any) -> tuple[int, int]:
    """Return how many heads may be converted, and the numbers of one."""
    if (recurrent := recurrent_tensor(spec)) is None:
        return 0, 0
    heads = recurrent.shape[0]
    return heads, recurrent.nbytes // (4 * heads)


def kept_bytes(spec: Any, checkpoint_format: StateFormat) -> int:
    """Return the bytes of a layer's state in a checkpoint."""
    page_bytes: int = spec.page_size_bytes
    if (recurrent := recurrent_tensor(spec)) is None:
        return page_bytes
    return page_bytes - recurrent.nbytes + recurrent.kept_bytes(checkpoint_format)
