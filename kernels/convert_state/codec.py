"""A float32 state group beside the group that holds it in a smaller format."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from hybrid_blocks.kernels.blocks import BlockTensors, Int64s

if TYPE_CHECKING:
    import torch

PackedFormat = Literal["bfloat16", "float8_e4m3fn", "int8"]

# The largest value of each scaled format; a head's largest magnitude is mapped onto it.
LARGEST: dict[str, float] = {"float8_e4m3fn": 448.0, "int8": 127.0}
# A head whose largest magnitude is below this is stored as zeros: its inverse scale would be
# infinite in float32.
SMALLEST_HEAD = 2.0**-100


@dataclass(eq=False)
class StateCodec:
    """The tensors that ``convert_state`` converts between, checked once.

    Tensor ``i`` of ``state`` is float32 ``[num_slots, heads, ...]``. Tensor ``i`` of ``packed`` has
    the same heads and head shape in bfloat16, float8_e4m3fn or int8, and its own number of blocks.
    Each head is contiguous on both sides. The 8-bit formats have a scale a head: tensor ``i`` of
    ``scales`` is float32 ``[packed blocks, heads]``, written by encode and read by decode.

    A head ``x`` with largest magnitude ``a`` comes back as ``y`` with

    - bfloat16: ``|y - x| <= 2**-8 * |x|`` (round to nearest, 8 significant bits);
    - int8: ``|y - x| <= a / 254``, half a step of ``a / 127``;
    - float8_e4m3fn: ``|y - x| <= max(2**-4 * |x|, 2**-10 * a / 448)``, half a step of a 4-bit
      significand, or of the subnormal spacing ``2**-9``,

    each up to a relative ``2**-21`` for the float32 products. A scaled head with ``a < 2**-100``
    comes back as zeros, one that holds an infinity or NaN as NaN throughout.

    Raises ``TypeError`` for a dtype, ``ValueError`` for shapes, devices or strides that do not fit.
    """

    state: BlockTensors
    packed: BlockTensors
    scales: BlockTensors | None = None
    format: PackedFormat = field(init=False)
    heads: Int64s = field(init=False)
    layers: Int64s = field(init=False)

    def __post_init__(self) -> None:
        self.format = _packed_format(self.packed)
        scaled = self.format in LARGEST
        if scaled != (self.scales is not None):
            raise ValueError(f"{self.format} {'needs' if scaled else 'takes no'} scales")
        _check_pairs(self.state, self.packed, self.scales)
        scales = self.scales.tensors if self.scales else (None,) * len(self.state.tensors)
        self.layers = np.array(
            [
                _layer(i, *tensors)
                for i, tensors in enumerate(
                    zip(self.state.tensors, self.packed.tensors, scales, strict=True)
                )
            ],
            np.int64,
        )
        num_heads = self.layers[:, 0]
        self.heads = np.empty((int(num_heads.sum()), 2), np.int64)
        self.heads[:, 0] = np.repeat(np.arange(len(num_heads)), num_heads)
        self.heads[:, 1] = np.arange(len(self.heads)) - np.repeat(
            np.cumsum(num_heads) - num_heads, num_heads
        )
        self.launches: dict[tuple[int, str], Any] = {}
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def head_elements(self) -> int:
        """Elements of the largest head."""
        return int(self.layers[:, 1].max())

    @property
    def vectorised(self) -> bool:
        """Whether every head can be read and written four elements at a time."""
        packed_width = 8 if self.format == "bfloat16" else 4
        state_bits = int(np.bitwise_or.reduce(self.layers[:, 2:5], axis=None))
        packed_bits = int(np.bitwise_or.reduce(self.layers[:, 5:8], axis=None))
        elements = int(np.bitwise_or.reduce(self.layers[:, 1]))
        return not (state_bits % 16 or packed_bits % packed_width or elements % 4)

    def tables(self) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Return ``layers`` and ``heads`` on the device, copied at the first call.

        ``layers`` is int64 ``[num_layers, 10]``. Two columns are heads and elements a head. Three
        are address of block 0, block stride and head stride of the state, three the same of the
        packed tensor. The last two are address and block stride of the scales. All are in bytes.
        ``heads`` is int64 ``[all heads, 2]``: the layer and the head in it.
        """
        if self._tables is None:
            import torch  # noqa: PLC0415

            device = self.state.device
            self._tables = (
                torch.from_numpy(self.layers).to(device),
                torch.from_numpy(self.heads).to(device),
            )
        return self._tables

    def device_tables(self) -> "list[torch.Tensor]":
        """Return the tables that lie on the device so far."""
        return list(self._tables or ())


def _packed_format(packed: BlockTensors) -> PackedFormat:
    formats = {str(tensor.dtype).removeprefix("torch.") for tensor in packed.tensors}
    for name in ("bfloat16", "float8_e4m3fn", "int8"):
        if formats == {name}:
            return name
    raise TypeError(
        f"packed tensors are {', '.join(sorted(formats))}; "
        "they must all be bfloat16, float8_e4m3fn or int8 (copy_blocks keeps the format)"
    )


def _check_pairs(state: BlockTensors, packed: BlockTensors, scales: BlockTensors | None) -> None:
    for name, group in (("packed", packed), ("scales", scales)):
        if group is None:
            continue
        if len(group.tensors) != len(state.tensors):
            raise ValueError(
                f"{name} has {len(group.tensors)} tensors, state has {len(state.tensors)}"
            )
        if group.device != state.device:
            raise ValueError(f"{name} is on {group.device}, state on {state.device}")
    if scales is not None and scales.num_blocks != packed.num_blocks:
        raise ValueError(
            f"scales has {scales.num_blocks} blocks, packed has {packed.num_blocks}; "
            "a scale belongs to a packed head"
        )


def _layer(
    index: int, state: "torch.Tensor", packed: "torch.Tensor", scales: "torch.Tensor | None"
) -> list[int]:
    if str(state.dtype) != "torch.float32":
        raise TypeError(f"state tensor {index} must be float32, got {state.dtype}")
    if state.dim() < 2 or state.shape[1:] != packed.shape[1:]:
        raise ValueError(
            f"tensor {index}: state blocks are {tuple(state.shape[1:])}, packed blocks "
            f"{tuple(packed.shape[1:])}; both must be [heads, ...]"
        )
    for name, tensor in (("state", state), ("packed", packed)):
        if not tensor[0, 0].is_contiguous():
            raise ValueError(f"{name} tensor {index}: a head must be contiguous")
    row = [state.shape[1], state[0, 0].numel()]
    for tensor in (state, packed):
        width = tensor.element_size()
        row += [tensor.data_ptr(), tensor.stride(0) * width, tensor.stride(1) * width]
    if scales is None:
        return [*row, 0, 0]
    if str(scales.dtype) != "torch.float32":
        raise TypeError(f"scales tensor {index} must be float32, got {scales.dtype}")
    if tuple(scales.shape[1:]) != (state.shape[1],) or not scales[0].is_contiguous():
        raise ValueError(
            f"scales tensor {index} must be contiguous [blocks, {state.shape[1]}], "
            f"got {tuple(scales.shape)}"
        )
    return [*row, scales.data_ptr(), scales.stride(0) * 4]
