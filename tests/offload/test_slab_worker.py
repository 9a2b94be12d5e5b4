"""Where the worker side finds the blocks of layers that lie in slabs."""

from typing import Any

import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.slabs.connector import SlabWorker
from nixl_sides import CUT, SLAB_BYTES, Slabs

NUM_SLABS = 5


def worker(slabs: Slabs) -> Any:
    made: Any = SlabWorker.__new__(SlabWorker)
    made.kv_cache_config = slabs.config
    made._init_worker = lambda canonical: setattr(made, "canonical", canonical)
    return made


def test_each_id_of_a_group_has_a_row_of_its_own_bytes() -> None:
    slabs = Slabs(NUM_SLABS)
    made = worker(slabs)
    made.register_kv_caches(slabs.views)
    tensors, refs = made.canonical.tensors, made.canonical.group_data_refs
    assert [[ref.page_size_bytes for ref in group] for group in refs] == [[256], [32, 32], [256]]
    for group, cut in zip(refs, (1, CUT, 1), strict=True):
        for row, ref in enumerate(group):
            rows, size = tensors[ref.tensor_idx].tensor, ref.page_size_bytes
            assert len(rows) == NUM_SLABS * cut
            for number, block in enumerate(rows):
                first = SLAB_BYTES // cut * number + size * row
                assert torch.equal(block, slabs.backing[first : first + size])


def test_a_layer_that_lies_elsewhere_is_an_error() -> None:
    slabs = Slabs(NUM_SLABS)
    slabs.views["l.10"] = slabs.views["l.0"]
    with pytest.raises(HybridBlocksError, match=r"layer l.10 begins at byte 0 of .*, not 32"):
        worker(slabs).register_kv_caches(slabs.views)
