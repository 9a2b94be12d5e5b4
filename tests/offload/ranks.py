"""Engines of several ranks in one process: vLLM's own layers, caches and connector on the CPU.

Which heads and channels a rank holds is what vLLM's own weight loaders put there: weights that name
them are loaded, and the caches are filled from what arrived.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.offload.tiers.codec import Codec
from hybrid_blocks.offload.tiers.queue import Chunks
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn import KimiGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.linear.minimax_linear_attn import MiniMaxText01LinearAttention
from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.short_conv import ShortConv
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.kv_offload.base import GPULoadStoreSpec, make_offload_key

NUM_BLOCKS = 4
TOKENS = 32
MODEL = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64),
    **dict.fromkeys(("num_attention_heads", "num_hidden_layers", "linear_num_value_heads"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_conv_kernel_dim"), 4),
    **dict.fromkeys(("head_dim", "linear_value_head_dim"), 32),
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "linear_key_head_dim": 16,
    "num_experts": 0,
}
MAMBA: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "ssm_state_size": 16}
MAMBA |= {"conv_kernel_size": 4, "use_conv_bias": True, "use_bias": False}


def ids(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def loaded(parameter: torch.nn.Parameter, weight: torch.Tensor, *shard: Any) -> torch.Tensor:
    """Let vLLM load its rank's share of ``weight``."""
    parameter.weight_loader(parameter, weight, *shard)  # type: ignore[attr-defined]
    return parameter.data


class Layer:
    """A layer, and which heads and channels of the model its rank holds.

    ``channels`` and ``heads`` are numbers of the whole model, in the order of the rank's cache.
    """

    def __init__(
        self, layer: Any, heads: torch.Tensor | None, channels: torch.Tensor | None = None
    ) -> None:
        self.layer = layer
        self.name: str = getattr(layer, "layer_name", None) or layer.prefix
        self.heads = heads
        self.channels = channels

    @property
    def tensors(self) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Caches by block, what each element along a dimension is, and the dimension."""
        caches = self.layer.kv_cache
        if isinstance(caches, torch.Tensor):
            assert self.heads is not None
            return [(caches, self.heads, 1)]
        found = []
        caches = list(caches)
        if self.channels is not None:
            cache = caches.pop(0)
            along = list(cache.shape[1:]).index(len(self.channels)) + 1
            found.append((cache, self.channels, along))
        if self.heads is not None:
            found.append((caches.pop(0), self.heads, 1))
        assert not caches
        return found


def convolution_of(weight: torch.nn.Parameter, parts: list[int]) -> torch.Tensor:
    """The channels that a rank holds of a convolution over several inputs in one tensor."""
    whole = ids(sum(parts)).reshape(-1, 1, 1).expand(-1, 1, weight.shape[-1])
    return loaded(weight, whole)[:, 0, 0].clone()


def attention(config: VllmConfig, name: str) -> Layer:
    qkv: Any = QKVParallelLinear(4, 32, 8, 2, bias=False)
    keys = ids(2).repeat_interleave(32)[:, None].expand(-1, 4)
    loaded(qkv.weight, keys, "k")
    own = qkv.num_kv_heads
    rows = qkv.weight.data[qkv.num_heads * 32 : (qkv.num_heads + own) * 32, 0]
    options: Any = {"num_kv_heads": own, "cache_config": config.cache_config, "prefix": name}
    layer = Attention(qkv.num_heads, 32, 1.0, **options)
    return Layer(layer, rows[::32].clone())


def gated_delta_net(config: VllmConfig, name: str) -> Layer:
    fields: Any = config.model_config.hf_text_config
    layer: Any = QwenGatedDeltaNetAttention(fields, config, prefix=name)
    sizes = [layer.key_dim, layer.key_dim, layer.value_dim]
    channels = convolution_of(layer.conv1d.weight, sizes)
    return Layer(layer, loaded(layer.A_log, ids(layer.num_v_heads)), channels)


def kimi_delta(config: VllmConfig, name: str) -> Layer:
    fields: Any = SimpleNamespace(
        hidden_size=64,
        num_attention_heads=8,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        linear_attn_config={"head_dim": 16, "num_heads": 8, "short_conv_kernel_size": 4},
    )
    layer: Any = KimiGatedDeltaNetAttention(fields, config, prefix=name)
    for number, shard in enumerate(ids(3 * 128).split(128)):
        loaded(layer.conv1d.weight, shard.reshape(-1, 1, 1).expand(-1, 1, 4), number)
    channels = layer.conv1d.weight.data[:, 0, 0].clone()
    return Layer(layer, loaded(layer.A_log, ids(8)), channels)


def linear_attention(config: VllmConfig, name: str) -> Layer:
    fields: Any = SimpleNamespace(hidden_size=64, num_attention_heads=8, head_dim=16)
    fields.num_hidden_layers = 8
    layer: Any = MiniMaxText01LinearAttention(fields, config, prefix=name)
    # Queries, keys and values of one head stand together.
    rows = ids(8).repeat_interleave(3 * 16)[:, None].expand(-1, 64)
    return Layer(layer, loaded(layer.qkv_proj.weight, rows)[:: 3 * 16, 0].clone())


def mamba2(num_groups: int) -> Any:
    def make(config: VllmConfig, name: str) -> Layer:
        configs: Any = {"model_config": config.model_config, "cache_config": config.cache_config}
        heads: Any = {"n_groups": num_groups, "num_heads": 8, "head_dim": 16}
        layer: Any = MambaMixer2(**MAMBA, **heads, **configs, prefix=name)
        layer.conv1d.weight.data = layer.conv1d.weight.data.squeeze(1)
        whole = ids(128 + 2 * num_groups * 16)[:, None].expand(-1, 4)
        if num_groups == 1:
            channels = loaded(layer.conv1d.weight, whole)[:, 0].clone()
        else:
            groups = num_groups * 16
            shards = enumerate(whole.split([128, groups, groups]))
            for number, shard in shards:
                loaded(layer.conv1d.weight, shard, number)
            channels = layer.conv1d.weight.data[:, 0].clone()
        return Layer(layer, loaded(layer.D, ids(8)), channels)

    return make


def mamba1(config: VllmConfig, name: str) -> Layer:
    own: Any = {"model_config": config.model_config, "cache_config": config.cache_config}
    layer: Any = MambaMixer(**MAMBA, time_step_rank=4, use_rms_norm=False, **own, prefix=name)
    channels = convolution_of(layer.conv1d.weight, [128])
    return Layer(layer, loaded(layer.D, ids(128)), channels)


def short_convolution(config: VllmConfig, name: str) -> Layer:
    fields: Any = SimpleNamespace(conv_L_cache=4, conv_bias=False)
    configs = (config.model_config, config.cache_config)
    layer: Any = ShortConv(fields, 64, 0, *configs, prefix=name)
    return Layer(layer, None, convolution_of(layer.conv.weight, [64]))


MAKERS = {
    "attention": attention,
    "gated_delta_net": gated_delta_net,
    "mamba2": mamba2(4),
    "mamba2_one_group": mamba2(1),
    "mamba1": mamba1,
    "kimi_delta": kimi_delta,
    "linear_attention": linear_attention,
    "short_convolution": short_convolution,
}
GROUPS = list(MAKERS)


class Rank:
    """The layers, caches and connector of one rank."""

    def __init__(self, engine: "Ranks", rank: int, options: dict[str, Any]) -> None:
        config = engine.config(rank, options)
        self.groups: list[list[Layer]] = []
        with engine.as_rank(rank), set_current_vllm_config(config):
            for kind, number in zip(engine.kinds, range(0, 99, 2), strict=False):
                names = [f"{engine.prefix}.layers.{number + at}.x" for at in range(2)]
                self.groups.append([MAKERS[kind](config, name) for name in names])
            caches: dict[str, torch.Tensor] = {}
            groups, tensors = [], []
            for group in self.groups:
                spec = group[0].layer.get_kv_cache_spec(config)
                names = [layer.name for layer in group]
                groups.append(KVCacheGroupSpec(names, spec))
                page = spec.page_size_bytes
                size = NUM_BLOCKS * page
                tensor = KVCacheTensor(2 * size, names, layer_stride=size, block_stride=page)
                tensors.append(tensor)
                raw = torch.zeros(tensor.size, dtype=torch.int8)
                kernel = engine.kernel_tokens if group is self.groups[0] else None
                layout = KVCacheLayout[engine.layout]
                views = create_kv_cache_views(raw, spec, NUM_BLOCKS, layout, tensor, kernel)
                for layer, name, view in zip(group, names, views, strict=True):
                    layer.layer.bind_kv_cache(view)
                    caches[name] = view
            kv_config = KVCacheConfig(NUM_BLOCKS, tensors, groups, hash_block_size=TOKENS)
            self.spec = HybridOffloadingSpec(build_offloading_config(config, kv_config))
            self.connector = OffloadingConnectorWorker(self.spec, config, kv_config)
            self.connector.register_kv_caches(caches)

    def contents(self, block: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each cache of a block, and what a model of any number of ranks writes there.

        States of float32 are numbers; of all else only the bits count.
        """
        pieces = (
            (cache[block * count + at], owners, dim, seed * 31 + at)
            for seed, layer in enumerate(layer for group in self.groups for layer in group)
            for cache, owners, dim in layer.tensors
            for count in [len(cache) // NUM_BLOCKS]  # the backend's own blocks in one
            for at in range(count)
        )
        for own, owners, dim, seed in pieces:
            number = torch.arange(own.numel() // len(owners))
            owner = owners.long()[:, None] if dim == 1 else owners.long()
            number = number if dim == 1 else number[:, None]
            places = owner * 7919 * 1013 + number * 7919 + seed * 104729 + own.dim()
            if own.dtype == torch.float32:
                values = torch.sin(places.float()) * (1 + owner)
                yield own, values.reshape(own.shape)
            else:
                values = (places % 30011).to(torch.int16)
                yield own.view(torch.int16), values.reshape(own.shape)

    def fill(self, block: int) -> None:
        for cache, expected in self.contents(block):
            cache.copy_(expected)

    def transfer(self, offsets: list[int], block: int, *, is_store: bool) -> None:
        """Copy a block of each group to or from host memory."""
        worker = self.connector.worker
        assert worker is not None
        count = len(self.groups)
        device = GPULoadStoreSpec([block] * count, [1] * count, [0] * count)
        if is_store:
            worker.submit_store(1, device, HostLoadStoreSpec(offsets))
        else:
            worker.submit_load(1, HostLoadStoreSpec(offsets), device)


class Ranks:
    """An engine of ``tp_size`` ranks, and its scheduler's manager."""

    def __init__(
        self,
        tp_size: int,
        folder: Path,
        *,
        layout: str = "LBHNC",
        kernel_tokens: int = TOKENS,
        prefix: str = "model",
        kinds: Sequence[str] = GROUPS,
        **options: Any,
    ) -> None:
        self.tp_size = tp_size
        self.kinds = kinds
        self.layout = layout
        self.kernel_tokens = kernel_tokens
        self.prefix = prefix
        self.folder = folder / "model"
        self.folder.mkdir(exist_ok=True)
        if not (path := self.folder / "config.json").exists():
            path.write_text(json.dumps(MODEL))
        self.engine_id = f"test-{uuid.uuid4()}"
        options = {"host": "4MiB", "disk": f"{folder / 'disk'}:64MiB", **options}
        self.ranks = [Rank(self, rank, options) for rank in range(tp_size)]
        manager = self.ranks[0].spec.get_manager()
        assert isinstance(manager, HybridOffloadingManager)
        self.manager = manager
        chunk_bytes = self.manager._host._chunk_bytes
        slots = [-(-size // 4096) * 4096 for size in chunk_bytes]
        self.offsets = [0, *np.cumsum(slots).tolist()[:-1]]
        self.keys = [make_offload_key(bytes([7] * 32), group) for group in range(len(kinds))]

    def config(self, rank: int, options: dict[str, Any]) -> VllmConfig:
        plain: Any = {"skip_tokenizer_init": True, "max_model_len": 256}
        model = ModelConfig(model=str(self.folder), dtype="bfloat16", **plain)
        cache = CacheConfig(block_size=TOKENS, enable_prefix_caching=True, mamba_block_size=TOKENS)
        cache.mamba_ssm_cache_dtype = "float32"
        config = VllmConfig(
            model_config=model,
            cache_config=cache,
            kv_transfer_config=KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                engine_id=self.engine_id,
                kv_connector_extra_config=options,
            ),
        )
        config.cache_config.mamba_block_size = TOKENS
        config.cache_config.kv_cache_layout = self.layout
        config.parallel_config.tensor_parallel_size = self.tp_size
        config.parallel_config.world_size = self.tp_size
        config.parallel_config.rank = rank
        return config

    @contextmanager
    def as_rank(self, rank: int) -> Iterator[None]:
        """Let vLLM make layers for a rank."""
        before = parallel_state._TP
        parallel_state._TP = SimpleNamespace(world_size=self.tp_size, rank_in_group=rank)  # type: ignore[assignment]
        try:
            yield
        finally:
            parallel_state._TP = before

    @property
    def codec(self) -> Codec:
        """The codec of the tiers below host memory."""
        assert self.manager._below.disk is not None
        assert self.manager._below.disk._codec is not None
        return self.manager._below.disk._codec

    def store(self) -> None:
        """Fill a block of each group on all ranks and bring it to the disk."""
        for rank in self.ranks:
            rank.fill(1)
            rank.transfer(self.offsets, 1, is_store=True)
        self.write()

    def write(self) -> None:
        """Write host memory to the disk, and end."""
        disk = self.manager._below.disk
        assert disk is not None
        disk.write(Chunks(self.keys, [TOKENS] * len(self.keys), self.offsets))
        disk.finished(wait=True)
        self.manager.shutdown()

    def load(self) -> list[bool]:
        """Bring what the disk has into another block of each rank; say which groups it had."""
        disk = self.manager._below.disk
        assert disk is not None
        disk.read(Chunks(self.keys, [TOKENS] * len(self.keys), self.offsets))
        (done,) = disk.finished(wait=True)
        for rank in self.ranks:
            rank.transfer(self.offsets, 2, is_store=False)
        self.manager.shutdown()
        return done.ok
