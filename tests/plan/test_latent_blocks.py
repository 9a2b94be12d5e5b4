"""The attention backend decides the blocks of latent attention: an option names it, or the card."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from hybrid_blocks.geometry import plan_natural
from hybrid_blocks.geometry.kernel_blocks import LATENT_BLOCK_TOKENS
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.read.command import read_command

MODEL = "DeepSeek-V3"
MEMORY = 24 * 2**30


def blocks(model: Model, deployment: Deployment) -> set[int]:
    natural = plan_natural(model, MEMORY, deployment)
    return {plan_vllm(model, MEMORY, deployment).block_tokens, natural.hash_block_size}


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ("--attention-backend FLASH_ATTN_MLA", 16),
        ("--attention-backend triton_mla", 16),
        ("--attention-backend FLASHINFER_MLA", 32),
        ("--attention-backend TOKENSPEED_MLA --kv-cache-dtype fp8", 32),
        ('--attention-config \'{"backend": "FLASHMLA"}\'', 64),
        ("--attention-backend CUTLASS_MLA", 128),
        ("--attention-backend FLASHMLA --block-size 128", 128),
        ("--attention-backend auto", 16),
        ("", 16),
    ],
)
def test_a_pasted_command_gets_the_blocks_of_its_backend(options: str, tokens: int) -> None:
    command = read_command([f"vllm serve {MODEL} --max-model-len 8192 {options}"])
    assert blocks(command.model, command.deployment) == {tokens}


@pytest.mark.parametrize(
    ("card", "kv_cache_dtype", "tokens"),
    [
        (None, "auto", 16),
        ("A100-80GB", "auto", 16),
        ("H100-80GB", "auto", 16),
        ("H100-80GB", "fp8", 64),
        ("B200", "fp8", 32),
        ("B200", "auto", 32),
        ("RTX-PRO-6000", "auto", 16),
    ],
)
def test_a_card_has_the_blocks_of_the_backend_that_vllm_picks(
    card: str | None, kv_cache_dtype: str, tokens: int
) -> None:
    deployment = Deployment(card=card, kv_cache_dtype=kv_cache_dtype, max_model_len=8192)
    assert blocks(load_model(MODEL), deployment) == {tokens}


@pytest.mark.parametrize(
    ("options", "card", "tokens"),
    [
        ("", None, 16),
        ("--attention-backend FLASH_ATTN", "B200", 16),
        ("--attention-backend HPC_ATTN", "H100-80GB", 64),
        ("--attention-backend B12X", "RTX-PRO-6000", 128),
    ],
)
def test_other_attention_has_the_blocks_of_its_backend(
    options: str, card: str | None, tokens: int
) -> None:
    command = read_command([f"vllm serve Phi-4 --max-model-len 8192 {options}"])
    deployment = msgspec.structs.replace(command.deployment, card=card)
    assert blocks(command.model, deployment) == {tokens}


def test_heads_of_256_numbers_have_wide_blocks_in_flash_attention_on_a_b200() -> None:
    command = read_command(["vllm serve Qwen3.5-27B --attention-backend FLASH_ATTN"])
    deployment = msgspec.structs.replace(command.deployment, card="B200")
    assert plan_vllm(command.model, MEMORY, deployment).block_tokens == 896
    assert plan_natural(command.model, MEMORY, deployment).hash_block_size == 128
    on_hopper = msgspec.structs.replace(deployment, card="H100-80GB")
    assert plan_vllm(command.model, MEMORY, on_hopper).block_tokens == 832


def test_a_block_that_its_backend_does_not_take_is_refused() -> None:
    with pytest.raises(PlanError, match="FLASHMLA takes multiples of 64"):
        read_command([f"vllm serve {MODEL} --attention-backend FLASHMLA --block-size 32"])


@pytest.mark.vllm
def test_each_backend_has_the_smallest_block_that_vllms_own_says_it_takes() -> None:
    """Read the source: some backends do not import without their card's driver."""
    package = Path(find_spec("vllm").origin).parent  # type: ignore[union-attr, arg-type]
    registry = (package / "v1/attention/backends/registry.py").read_text()
    for name, tokens in {**LATENT_BLOCK_TOKENS, "HPC_ATTN": 64}.items():
        path = re.search(rf'^    {name} = \(?\s*"([\w.]+)\.(\w+)"', registry, re.MULTILINE)
        assert path is not None
        source = package.parent.joinpath(*path[1].split(".")).with_suffix(".py").read_text()
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
        (backend,) = (node for node in classes if node.name == path[2])
        (sizes,) = (
            ast.unparse(node.body[-1])
            for node in backend.body
            if isinstance(node, ast.FunctionDef) and node.name == "get_supported_kernel_block_sizes"
        )
        assert min(map(int, re.findall(r"\d+", sizes))) == tokens
