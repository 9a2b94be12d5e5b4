"""The planned number of requests is what the block manager takes, and not one more."""

import numpy as np
import pytest
from hybrid_blocks._core import BlockManager
from hybrid_blocks.geometry import capacity
from hybrid_blocks.hashing import block_hasher
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import ArenaPlan, Deployment, plan_natural
from hybrid_blocks.tools.replay.managers.rust import group_spec

CHUNK = 512
CHUNKS = 5
REQUESTS = 12


def _manager(geometry: ArenaPlan) -> BlockManager:
    return BlockManager(
        [group_spec(group) for group in geometry.groups],
        block_hasher("sha256", geometry.hash_block_size),
        num_slabs=geometry.num_slabs,
        blocks_per_slab=geometry.pools,
        enable_caching=False,
        max_in_flight_tokens=geometry.in_flight_tokens,
    )


def _serve(manager: BlockManager, number: int, lookahead: int) -> bool:
    """Prefill a prompt in whole chunks, then make room for a decode step."""
    prompt = np.arange(CHUNK * CHUNKS + 1, dtype=np.int32)
    handle = np.array([manager.add_request(f"request {number}", prompt)], np.int64)
    chunk, token = np.array([CHUNK], np.int32), np.array([1], np.int32)
    for _ in range(CHUNKS):
        if not manager.allocate(handle, chunk):
            return False
        manager.advance(handle, chunk)
    return manager.allocate(handle, token, lookahead) == 1


@pytest.mark.parametrize("speculative", [0, 2])
@pytest.mark.parametrize("name", entries())
def test_the_manager_takes_the_planned_requests_and_no_more(name: str, speculative: int) -> None:
    model = load_model(name)
    length = CHUNK * CHUNKS + 1 + speculative
    options = Deployment(
        max_model_len=length, max_num_batched_tokens=CHUNK, num_speculative_tokens=speculative
    )
    probe = plan_natural(model, 2**50, options)
    memory = (probe.slabs(REQUESTS, length) + 1) * probe.slab_bytes
    geometry = plan_natural(model, memory, options)
    assert capacity.requests(geometry, length) >= REQUESTS
    manager = _manager(geometry)
    served = 0
    while _serve(manager, served, speculative):
        served += 1
    manager.check_integrity()
    assert served == capacity.requests(geometry, length)
