"""What stored bytes are known by."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_blocks.offload.identity import machine, model_digest
from vllm.config import CacheConfig, ModelConfig, VllmConfig
from vllm.platforms import current_platform

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


def digest(folder: str, *, cache_dtype: str = "auto", dtype: str = "float16", **model: Any) -> str:
    served = ModelConfig(
        model=folder,
        dtype=dtype,  # type: ignore[arg-type]
        skip_tokenizer_init=True,
        max_model_len=256,
        **model,
    )
    cache = CacheConfig(block_size=16, cache_dtype=cache_dtype)
    return model_digest(VllmConfig(model_config=served, cache_config=cache))


def test_what_changes_a_models_cache_changes_its_digest(folder: Path) -> None:
    digests = [
        digest(str(folder)),
        digest(
            str(folder),
            hf_overrides={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ),
        digest(str(folder), revision="of-yesterday"),
        digest(str(folder), cache_dtype="fp8"),
        digest(str(folder), cache_dtype="fp8", dtype="bfloat16"),
    ]
    assert len(set(digests)) == len(digests)


def test_a_processor_that_lays_attention_out_otherwise_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_amx(has: bool) -> str | None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": has})
        return machine()

    monkeypatch.setattr(current_platform, "is_cpu", lambda: True)
    assert with_amx(True) != with_amx(False)
    assert with_amx(True) == with_amx(True)
    monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
    assert machine() is None


def test_a_digest_is_the_same_in_another_process(folder: Path) -> None:
    run = "import sys, test_identity; print('digest', test_identity.digest(sys.argv[1]))"
    command = [sys.executable, "-c", run, str(folder)]
    other = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert f"digest {digest(str(folder))}" in other.stdout
