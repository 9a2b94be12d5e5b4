"""What stored bytes are known by."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.offload.identity import model_digest
from vllm.config import CacheConfig, ModelConfig, VllmConfig

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


def test_a_digest_is_the_same_in_another_process(folder: Path) -> None:
    run = "import sys, test_identity; print('digest', test_identity.digest(sys.argv[1]))"
    command = [sys.executable, "-c", run, str(folder)]
    other = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert f"digest {digest(str(folder))}" in other.stdout
