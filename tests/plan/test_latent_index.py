"""Sparse latent attention: an index beside the latents counts."""

from pathlib import Path

import msgspec
import pytest
from hybrid_blocks.model import Rank, from_config
from hybrid_blocks.model.described import decode
from hybrid_blocks.model.layer import LatentAttention, LatentIndex
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.plan.report import Plan, make_report
from hybrid_blocks.tools.read.command import read_command

FIELDS: dict[str, object] = {
    "model_type": "deepseek_v32",
    "num_hidden_layers": 8,
    "index_head_dim": 128,
    "index_topk": 2048,
}
LATENT = (512 + 64) * 2
INDEX = 128 + 4


def indexed(fields: dict[str, object]) -> list[int]:
    """Depths of the layers that have an index."""
    layers = from_config({**FIELDS, **fields}, "sparse").layers
    return [layer.depth for layer in layers if isinstance(layer.cache, LatentIndex)]


def test_each_layer_keeps_a_key_of_its_index_beside_its_latent() -> None:
    model = from_config(FIELDS, "sparse")
    plan = plan_vllm(model, 2**32, Deployment(max_model_len=4096))
    assert indexed({}) == list(range(8))
    assert len(plan.groups) == 1
    assert ["Hopper" in note for note in model.notes] == [True]
    assert plan.block_bytes == 8 * 64 * (LATENT + INDEX)


def test_level_natural_counts_the_index() -> None:
    plan = plan_natural(from_config(FIELDS, "sparse"), 2**32, Deployment(max_model_len=4096))
    assert sum(group.block_bytes for group in plan.groups) == 8 * 64 * (LATENT + INDEX)


def test_a_plan_says_that_no_engine_serves_it_at_level_natural() -> None:
    report = make_report(Plan(from_config(FIELDS, "sparse"), 2**35, Deployment(max_model_len=4096)))
    assert "natural: vLLM runs at level manager (sparse latent attention)" in report.warnings


def test_level_natural_keeps_layers_apart_that_take_what_another_chose() -> None:
    """So does vLLM's spec, which tells them apart."""
    model = from_config({**FIELDS, "index_topk_freq": 4}, "sparse")
    groups = plan_natural(model, 2**32, Deployment(max_model_len=4096)).groups
    assert [group.layers for group in groups] == [(0, 1, 5), (0, 1, 5), (2, 3, 4, 6, 7)]


@pytest.mark.parametrize(
    ("fields", "depths"),
    [
        ({"index_topk_freq": 4}, [0, 1, 5]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6]),
        ({"index_topk_pattern": "FSSFSSFS"}, [0, 3, 6]),
        ({"index_topk_pattern": "FS"}, [0, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_layer_may_take_what_another_chose(fields: dict[str, object], depths: list[int]) -> None:
    assert indexed(fields) == depths


def test_a_draft_layer_always_chooses_for_itself() -> None:
    fields = {"index_topk_pattern": "FSSSSSSS", "num_nextn_predict_layers": 1}
    drafts = from_config({**FIELDS, **fields}, "sparse").draft_layers
    assert [type(layer.cache) for layer in drafts] == [LatentAttention, LatentIndex]
    assert {layer.depth for layer in drafts} == {8}
    assert drafts[0].cache == from_config(FIELDS, "sparse").layers[0].cache


def test_an_index_counts_whatever_the_type_says() -> None:
    model = from_config({**FIELDS, "model_type": "deepseek_v3"}, "sparse")
    assert len(model.layers) == 2 * 8


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_ds_mla"])
def test_sparse_kernels_have_an_fp8_format_of_their_own(kv_dtype: str) -> None:
    latent = LatentAttention(latent_dim=576, sparse=True)
    rank = Rank(kv_dtype=kv_dtype)
    assert latent.token_bytes(rank) == 656
    assert LatentIndex(head_dim=128).token_bytes(rank) == INDEX


def test_an_index_is_described_by_hand() -> None:
    layer = b'[{"kind": "mla", "latent_dim": 576}, {"kind": "mla_index", "head_dim": 128}]'
    model = decode(b'{"layers": [{"repeat": 2, "pattern": [' + layer + b"]}]}", "by hand")
    assert [layer.depth for layer in model.layers] == [0, 0, 1, 1]
    assert model.layers[1].cache == LatentIndex(head_dim=128)


def test_as_many_tokens_are_drafted_as_the_head_has_layers(tmp_path: Path) -> None:
    fields = {**FIELDS, "num_nextn_predict_layers": 2}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(fields))
    config = '{"method": "mtp"}'
    command = read_command([f"vllm serve {tmp_path} --speculative-config '{config}'"])
    assert command.deployment.num_speculative_tokens == 2
