"""Where the blocks of each layer lie: rows of bytes, one for each id of the layer's group."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_blocks.errors import HybridBlocksError


@dataclass(frozen=True, slots=True)
class LayerRows:
    """A layer of a group. A row has ``page`` bytes and lies a block's stride behind the last."""

    layer: str
    group: int
    rows: torch.Tensor
    page: int


def rows_of(
    config: Any, groups: Iterable[int], kv_caches: Mapping[str, Any]
) -> Iterator[LayerRows]:
    """Yield the layers of ``groups``, group by group.

    Raises:
        HybridBlocksError: a layer does not lie where level ``natural`` places it.
    """
    placed = {
        name: (tensor, row)
        for tensor in config.kv_cache_tensors
        for row, name in enumerate(tensor.layers)
    }
    for number in groups:
        group = config.kv_cache_groups[number]
        page = group.kv_cache_spec.page_size_bytes
        num_ids = config.num_blocks * config.blocks_per_slab_of(number)
        for name in group.layer_names:
            tensor, row = placed[name]
            rows = _rows(kv_caches[name], num_ids, page, tensor.block_stride)
            expected = tensor.offset + row * tensor.layer_stride
            if rows.storage_offset() != expected:
                raise HybridBlocksError(
                    f"layer {name} begins at byte {rows.storage_offset()} of the KV cache, "
                    f"not {expected}, where level natural places it; set HYBRID_BLOCKS=manager"
                )
            yield LayerRows(name, number, rows, page)


def _rows(cache: Any, num_ids: int, page: int, stride: int) -> torch.Tensor:
    """Return the bytes of a layer's blocks, one row an id. A state's parts lie side by side."""
    first: torch.Tensor = cache[0] if isinstance(cache, list | tuple) else cache
    return torch.tensor([], dtype=torch.int8, device=first.device).set_(
        first.untyped_storage(),
        first.storage_offset() * first.element_size(),
        (num_ids, page),
        (stride, 1),
    )
