"""Bytes of every format are those of vLLM's own specs, in the backend that packs it."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hybrid_blocks.model import Rank, formats
from hybrid_blocks.model.layer import FullAttention
from vllm.config.cache import CacheDType
from vllm.utils.torch_utils import (
    STR_DTYPE_TO_TORCH_DTYPE,
    get_kv_cache_quant_algo_string,
    nvfp4_kv_cache_full_dim,
)
from vllm.v1.attention.backends.rocm_octave_attn import RocmOctaveAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
from vllm.v1.attention.ops import rocm_octave
from vllm.v1.attention.ops.ultraquant.format import slot_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

FORMATS = [name for name in get_args(CacheDType) if name != "auto"]
BACKENDS: dict[str, Any] = {
    "octave": RocmOctaveAttentionBackend,
    "turboquant": TurboQuantAttentionBackend,
}


def test_every_format_of_vllm_is_known() -> None:
    assert set(FORMATS) <= set(formats.KNOWN)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", sorted(set(FORMATS) - formats.LATENT_BLOBS.keys()))
def test_a_token_has_the_bytes_of_vllms_spec(name: str, head_dim: int) -> None:
    rocm_octave._rope_dim_by_head_size.clear()
    rocm_octave.register_rope_dim(head_dim, head_dim)
    kept: Any = {"dtype": STR_DTYPE_TO_TORCH_DTYPE[name], "kv_quant_mode": get_kv_quant_mode(name)}
    spec = FullAttentionSpec(block_size=1, num_kv_heads=2, head_size=head_dim, **kept)
    # As the backends of these two do, which need a GPU's libraries.
    if spec.kv_quant_mode.is_nvfp4:
        half = nvfp4_kv_cache_full_dim(head_dim)
        spec = replace(spec, num_head_slots=2 * spec.num_kv_heads, state_content_bytes=half)
    if spec.kv_quant_mode.is_ultraquant:
        spec = replace(spec, state_content_bytes=slot_size(head_dim))
    backend = BACKENDS.get(name.split("_", maxsplit=1)[0], TritonAttentionBackend)
    cache = FullAttention(kv_heads=2, head_dim=head_dim)
    assert cache.token_bytes(Rank(kv_dtype=name)) == backend.customize_spec(spec).page_size_bytes
    rocm_octave._rope_dim_by_head_size.clear()


@pytest.mark.parametrize("algorithm", ["FP8", "fp8", "NVFP4", "INT8", None])
@pytest.mark.parametrize("bits", [4, 8, None])
@pytest.mark.parametrize("dynamic", [True, False, None])
@pytest.mark.parametrize("inner", [True, False])
def test_what_modelopt_names_is_read_as_by_vllm(
    algorithm: str | None, bits: int | None, *, dynamic: bool | None, inner: bool
) -> None:
    scheme = {"num_bits": bits, "dynamic": dynamic, "type": "float"}
    named = {"kv_cache_scheme": bits and scheme, "kv_cache_quant_algo": algorithm}
    place = {"quantization": named} if inner else named
    quantized: dict[str, Any] = {"quant_method": "modelopt", **place}
    theirs = get_kv_cache_quant_algo_string(quantized)
    ours = formats.checkpoint_format({"quantization_config": quantized}, "made")
    assert ours == (None if theirs == "auto" else theirs)
