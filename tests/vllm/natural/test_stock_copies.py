"""A fault of vLLM's own copies that level ``natural`` is free of."""

import pytest
import torch
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import FullAttention, Mamba2
from hybrid_blocks.tools.plan import Deployment
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache, copy_kv_cache_blocks_inplace

from natural.arena import Arena
from natural.engine import Engine, installed

BLOCKS = 5
FULL = FullAttention(kv_heads=1, head_dim=32)
STATE = Mamba2(inner_dim=64, groups=1, heads=4, head_dim=16, state_dim=32, conv_kernel=4)
# Two layers a group: with one, a block is one run of memory, and vLLM copies it whole.
LAYERS = (Layer(0, STATE), Layer(1, STATE), Layer(2, FULL), Layer(3, FULL))
MODEL = Model(name="made", model_type="made", num_layers=4, layers=LAYERS)
STATE_FIRST, ATTENTION = "layers.0.state", "layers.2.full"


def _missing(config: KVCacheConfig, views: dict[str, torch.Tensor]) -> int:
    """Elements of an attention block that a copy leaves behind; views in the order of layers."""
    attention = views[ATTENTION]
    block = attention.shape[0] // config.num_blocks
    source, target = attention[2 * block : 3 * block], attention[3 * block : 4 * block]
    source.fill_(1)
    target.fill_(0)
    copy_kv_cache_blocks_inplace(
        [views[name] for name in sorted(views)], config.num_blocks, [KVCacheBlockCopy(2, 3)]
    )
    return int((target != source).sum())


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
def test_stock_copies_only_a_padded_states_bytes_of_an_attention_page(layout: str) -> None:
    """The state's view comes first; the attention view begins at its byte and is left out."""
    engine = Engine(MODEL, Deployment(max_model_len=256), 2**28, layout=layout)
    config = engine.kv_cache_config
    states, attention = (engine.specs[name] for name in (STATE_FIRST, ATTENTION))
    padded = states.page_size_bytes - states.state_content_size_bytes
    assert padded > 0
    assert states.page_size_bytes == attention.page_size_bytes
    views = allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout])
    assert _missing(config, views) == padded // views[ATTENTION].element_size()


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
def test_level_natural_copies_a_slab_whole(layout: str) -> None:
    with installed():
        engine = Engine(MODEL, Deployment(max_model_len=256), 2**28, layout=layout)
    arena = Arena(engine, BLOCKS, "cpu")
    assert _missing(arena.config, arena.views) == 0
