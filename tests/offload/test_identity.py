"""The identity that names stored bytes."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from configurations import configuration, digest, write
from hybrid_blocks.offload import spec
from hybrid_blocks.offload.identity import fingerprint, identity_of, machine
from hybrid_blocks.offload.identity.fingerprint import file_content
from hybrid_blocks.offload.options import Options
from hybrid_blocks.offload.region import Header
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from process import printed_by_python
from vllm.config.quantization import resolve_quantization_config
from vllm.platforms import current_platform

LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 128,
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write(tmp_path / "model")


def test_what_changes_a_models_cache_changes_its_digest(folder: str) -> None:
    digests = [
        digest(folder),
        digest(
            folder, hf_overrides={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
        ),
        digest(folder, cache_dtype="fp8"),
        digest(folder, cache_dtype="fp8", dtype="bfloat16"),
        digest(folder, load={"load_format": "dummy"}),
        digest(folder, load={"load_format": "dummy"}, seed=7),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(folder, seed=7) == digests[0], "weights are read"


@pytest.mark.parametrize(
    ("rope", "lengths", "num_digests"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, (64, 128, 129, 256), 1),
        (LONG_ROPE, (64, 128, 129, 256), 2),
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, (64, 256), 2),
    ],
)
def test_the_longest_length_counts_where_it_picks_a_rotation(
    folder: str, rope: dict[str, Any], lengths: tuple[int, ...], num_digests: int
) -> None:
    overrides = {"rope_parameters": rope}
    digests = {digest(folder, hf_overrides=overrides, max_model_len=it) for it in lengths}
    assert len(digests) == num_digests


def test_the_longest_length_counts_in_models_that_read_it(folder: str) -> None:
    config = configuration(folder)

    def digests(architecture: str, *lengths: int) -> int:
        config.model_config.hf_config.architectures = [architecture]
        found = set()
        for length in lengths:
            config.model_config.max_model_len = length
            found.add(identity_of(config).digest)
        return len(found)

    assert digests("LlamaForCausalLM", 1000, 30000, 40000) == 1
    assert digests("Llama4ForConditionalGeneration", 1000, 30000, 40000) == 2
    assert digests("NemotronH_Nano_VL_V2", 1000, 30000, 40000) == 3


# Files of vLLM's models and rotations that read the longest length, and change no byte by it but in
# what the identity holds: they bound memory or what is profiled, or cut tables of rotations.
READERS = """
cohere_compass colpali config deepseek_ocr deepseek_v2 deepseek_vl2 diffusion_gemma embedding_gemma2
ernie45_vl gemma3_mm gemma4_mm glm4_1v idefics3 internvl kimi_k25 kimi_vl lfm2_vl llama4 minicpmv
minimax_m2 mllama4 nano_nemotron_vl parakeet phi3_long_rope_scaled_rope plamo3 qwen2_5_vl qwen2_vl
qwen3_vl step3_vl utils voxtral voxtral_realtime
"""


def test_every_model_that_reads_the_longest_length_is_known() -> None:
    from vllm.model_executor import models  # noqa: PLC0415 - slow, and of this test alone

    code = Path(str(models.__path__[0]))
    files = [*code.rglob("*.py"), *(code.parent / "layers/rotary_embedding").glob("*.py")]
    readers = {it.stem for it in files if "max_model_len" in it.read_text()}
    assert sorted(readers - set(READERS.split())) == [], "does it change keys, values or images?"


def test_the_content_of_an_online_quantization_counts(folder: str) -> None:
    config = configuration(folder)

    def online(**quantization: Any) -> str:
        resolved = resolve_quantization_config("online", quantization)
        config.model_config.quantization_config = resolved
        return identity_of(config).digest

    digests = [
        online(linear="fp8_per_tensor"),
        online(linear="mxfp8"),
        online(linear="fp8_per_tensor", ignore=["model.layers.0"]),
    ]
    assert len(set(digests)) == 3
    assert online(linear="mxfp8") == digests[1]


def test_a_platforms_format_of_numbers_counts(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(dtype: torch.dtype) -> str:
        monkeypatch.setattr(type(current_platform), "fp8_dtype", lambda *_: dtype)
        return digest(folder)

    assert on(torch.float8_e4m3fn) != on(torch.float8_e4m3fnuz)


def test_a_model_that_was_downloaded_again_is_the_same(folder: str, tmp_path: Path) -> None:
    before = digest(folder)
    again = shutil.copytree(folder, tmp_path / "elsewhere")
    (again / ".cache").mkdir()
    (again / ".cache" / "download").write_text("at noon")
    os.utime(again / "config.json", ns=(1, 1))
    assert digest(str(again)) == before
    (again / "code.py").write_text("y = 2 * x")
    assert digest(str(again)) != before


@pytest.mark.parametrize("name", ["model.gguf", "below/model.safetensors"])
def test_weights_are_known_by_their_content(folder: str, name: str) -> None:
    file = Path(folder, name)
    file.parent.mkdir(exist_ok=True)
    size = fingerprint._SMALL + 4096
    with file.open("wb") as weights:
        weights.truncate(size)
    empty, known = file_content(file), digest(folder)
    with file.open("r+b") as weights:
        weights.seek(size // 2)
        weights.write(bytes(range(256)))
    assert file_content(file) != empty
    assert digest(folder) != known


def test_one_file_and_files_that_options_name_count_by_content(folder: str, tmp_path: Path) -> None:
    config = configuration(folder)
    file = tmp_path / "scales.json"
    for owner, name in [(config.model_config, "model"), (config, "additional_config")]:
        object.__setattr__(owner, name, str(file))
        digests = set()
        for text in ("1", "2", "1"):
            file.write_text(text)
            digests.add(identity_of(config).digest)
        assert len(digests) == 2


def test_a_value_without_a_text_switches_disk_and_objects_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = object.__new__(HybridOffloadingSpec)
    made._options = Options.parse({"host": "1MiB", "disk": f"{tmp_path}:1GiB"})
    config = configuration(write(tmp_path / "model"))
    config.model_config.hf_config.odd = object()
    told: list[str] = []
    warn = SimpleNamespace(warning=lambda text, *values: told.append(text % values))
    monkeypatch.setattr(spec, "logger", warn)
    header = Header(rank_bytes=[], layout=spec._digest(config))
    nothing: Any = None
    below = made._below(nothing, header, nothing)
    assert not any(below)
    assert len(told) == 1
    assert "hf_config.odd (a builtins.object)" in told[0]


def test_a_processor_with_another_attention_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_amx(has: bool) -> str | None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": has})
        return machine()

    monkeypatch.setattr(current_platform, "is_cpu", lambda: True)
    assert with_amx(True) != with_amx(False)
    assert with_amx(True) == with_amx(True)
    monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
    assert machine() is None


def test_a_digest_is_the_same_in_another_process(folder: str) -> None:
    run = "import sys, configurations; print('digest', configurations.digest(sys.argv[1]))"
    other = printed_by_python("-c", run, folder, cwd=Path(__file__).parent)
    assert f"digest {digest(folder)}" in other
