import numpy as np
import torch
from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from hybrid_blocks.kernels import apply_table_delta


def test_the_managers_changes_keep_a_copy_of_its_tables_up_to_date() -> None:
    groups = [GroupSpec("full", 4), GroupSpec("sliding_window", 4, window=6)]
    manager = BlockManager(groups, block_hasher("sha256", 4), num_blocks=200, enable_delta=True)
    tables = [torch.zeros((8, 32), dtype=torch.int32) for _ in groups]
    handles = np.array(
        [manager.add_request(f"r{i}", np.arange(i, i + 100, dtype=np.int32)) for i in range(5)]
    )
    for step in range(1, 8):
        tokens = np.full(5, step, dtype=np.int32)
        for handle in handles:
            manager.match_prefix(int(handle))
        assert manager.allocate(handles, tokens) == 5
        manager.advance(handles, tokens)
        for table, delta in zip(tables, manager.take_delta(), strict=True):
            apply_table_delta(table, *delta)
        for group, table in enumerate(tables):
            for handle in handles:
                expected = manager.block_ids(int(handle), group)
                row = table[int(handle) & 0xFFFF_FFFF, : len(expected)]
                assert row.tolist() == expected.tolist()
    windowed = manager.block_ids(int(handles[0]), 1)
    assert (windowed == 0).any(), "nothing was given back: the test sees no cleared entry"
