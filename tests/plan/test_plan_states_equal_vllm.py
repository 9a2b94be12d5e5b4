"""States read from ``config.json`` fields have the size that vLLM's model classes give them."""

from importlib import import_module
from math import prod
from types import SimpleNamespace

import pytest
from hybrid_blocks.model import PlanError, Rank, from_config, table
from hybrid_blocks.model.layer import State
from vllm.utils.torch_utils import get_dtype_size

CLASSES = {
    "Qwen3.5-27B": "qwen3_next.Qwen3NextForCausalLM",
    "Qwen3-Next-80B-A3B": "qwen3_next.Qwen3NextForCausalLM",
    "Olmo-Hybrid-7B": "olmo_hybrid.OlmoHybridForCausalLM",
    "Jamba-1.5-Mini": "jamba.JambaForCausalLM",
    "Nemotron-H-8B": "nemotron_h.NemotronHForCausalLM",
    "Nemotron-Nano-9B-v2": "nemotron_h.NemotronHForCausalLM",
    "Nemotron-3-Nano-30B-A3B": "nemotron_h.NemotronHForCausalLM",
    "Granite-4.0-H-Small": "granitemoehybrid.GraniteMoeHybridForCausalLM",
    "Falcon-H1-7B": "falcon_h1.FalconH1ForCausalLM",
    "Falcon-H1-34B": "falcon_h1.FalconH1ForCausalLM",
    "Zamba2-7B": "zamba2.Zamba2ForCausalLM",
    "LFM2-1.2B": "lfm2.Lfm2ForCausalLM",
    "Ling-3.0-Flash": "bailing_moe_v3.BailingMoeV3ForCausalLM",
    "Ring-2.5-1T": "bailing_moe_linear.BailingMoeV25ForCausalLM",
}

WITHOUT_SPECULATION = ("LFM2-1.2B",)
"""The class method of LFM2 leaves the speculative columns to the layer."""


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("tp", "speculative"), [(1, 0), (2, 0), (4, 2), (8, 3)])
def test_a_state_has_the_bytes_that_the_model_class_of_vllm_gives_it(
    name: str, tp: int, speculative: int
) -> None:
    if name in WITHOUT_SPECULATION:
        speculative = 0
    found, entry = table.find(name)
    fields, _ = table.fields(entry)
    model = from_config(fields, found)
    cache = next(layer.cache for layer in model.layers if isinstance(layer.cache, State))
    rank = Rank(tp=tp, num_speculative_tokens=speculative, ssm_dtype="float32")
    config = _config({"conv_dim": fields["hidden_size"], **fields}, tp, speculative)
    module, cls = CLASSES[name].split(".")
    model_class = getattr(import_module(f"vllm.model_executor.models.{module}"), cls)
    try:
        shapes = model_class.get_mamba_state_shape_from_config(config)
    except AssertionError:
        with pytest.raises(PlanError, match=f"--tp {tp}"):
            cache.state_bytes(rank)
        return
    dtypes = model_class.get_mamba_state_dtype_from_config(config)
    assert cache.state_bytes(rank) == sum(
        prod(shape) * get_dtype_size(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def _config(fields: dict[str, object], tp: int, speculative: int) -> SimpleNamespace:
    import torch  # noqa: PLC0415

    hf = SimpleNamespace(**fields)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=tp),
        model_config=SimpleNamespace(hf_config=hf, hf_text_config=hf, dtype=torch.bfloat16),
        cache_config=SimpleNamespace(
            use_replayssm=False, mamba_cache_dtype="auto", mamba_ssm_cache_dtype="float32"
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=speculative)
        if speculative
        else None,
        num_speculative_tokens=speculative,
    )
