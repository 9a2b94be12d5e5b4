"""vLLM's own functions place every model's caches so that no two of them meet."""

import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import Deployment
from plan_oracle import StateLayer
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from natural.arena import Arena
from natural.engine import Engine, installed

SLABS = 3
CONDITIONS = tomllib.loads((Path(__file__).parent / "conditions.toml").read_text())["condition"]


STAGES = {
    "Qwen3.5-27B": 3,
    "Nemotron-H-8B": 2,
    "Kimi-Linear-48B-A3B": 2,
    "Gemma-3-27B": 4,
    "gpt-oss-20b": 5,
}
"""Pipeline stages that do not share the layers of a kind out evenly."""


@pytest.fixture(
    scope="module",
    params=[
        *((name, 1, 0) for name in entries()),
        *((name, pp, stage) for name, pp in STAGES.items() for stage in range(pp)),
    ],
    ids=lambda case: f"{case[0]} {case[2] + 1} of {case[1]}",
)
def arena(request: pytest.FixtureRequest) -> Arena:
    name, pp, stage = request.param
    with installed():
        deployment = Deployment(max_model_len=16_384, num_speculative_tokens=2, pp=pp)
        return Arena(Engine(load_model(name), deployment, 2**37), SLABS, "meta", stage)


def test_no_two_layers_of_a_group_meet_and_no_id_leaves_its_slab(arena: Arena) -> None:
    for number, group in enumerate(arena.config.kv_cache_groups):
        cut = arena.config.blocks_per_slab_of(number)
        starts: list[Any] = []
        ends: list[Any] = []
        for name in group.layer_names:
            first, size = arena.ranges(name)
            assert size == group.kv_cache_spec.page_size_bytes
            assert len(first) == SLABS * cut
            assert (arena.slab_of(first) == np.arange(len(first)) // cut).all()
            assert (arena.slab_of(first + size - 1) == np.arange(len(first)) // cut).all()
            starts.append(first)
            ends.append(first + size)
        order = np.argsort(np.concatenate(starts))
        assert (np.concatenate(ends)[order][:-1] <= np.concatenate(starts)[order][1:]).all()
        assert np.concatenate(ends).max() <= arena.size


CHECKS: dict[str, Callable[[torch.Tensor], bool]] = {
    "a slot's stride covers its state": lambda view: view.stride(0) >= view[0].numel(),
    "a state is contiguous inside its slot": lambda view: view[0].is_contiguous(),
    "slots begin at multiples of 16 bytes": lambda view: aligned(view, 16),
    "a slot's offset may pass 2**31 elements": lambda view: view.stride(0) < 2**31,
    "a block is contiguous": lambda view: dense(view[0]),
    "blocks begin at multiples of 16 bytes": lambda view: aligned(view, 16),
    "a block's stride fits 32 bits of elements": lambda view: view.stride(0) < 2**31,
    "zeroing takes whole 4-byte words": lambda view: aligned(view, 4),
    "nothing lies between blocks": lambda view: view.stride(0) == view[0].numel(),
}


def aligned(view: torch.Tensor, size: int) -> bool:
    width = view.element_size()
    return bool(view.stride(0) * width % size == 0 and view.storage_offset() * width % 4 == 0)


def dense(block: torch.Tensor) -> bool:
    """Whether the elements of a block fill one run of memory, in whatever order."""
    order = sorted(range(block.ndim), key=block.stride, reverse=True)
    return block.permute(order).is_contiguous()


def views_of(arena: Arena, kind: str) -> Iterator[torch.Tensor]:
    """Every view of a kind that a condition may name: ``state``, ``latent`` or ``attention``."""
    for group in arena.config.kv_cache_groups:
        latent = isinstance(group.kv_cache_spec, MLAAttentionSpec)
        for name in group.layer_names:
            layer = arena.engine.layers[name]
            if isinstance(layer, StateLayer):
                yield from layer.kv_cache if kind == "state" else ()
            elif kind == "attention" or (kind == "latent" and latent):
                yield arena.views[name]


def test_views_meet_what_kernels_ask(arena: Arena) -> None:
    broken = [
        f"{condition['path']}: {condition['check']}"
        for condition in CONDITIONS
        if not all(map(CHECKS[condition["check"]], views_of(arena, condition["of"])))
    ]
    assert not broken


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: f"{c['path']}: {c['check']}")
def test_kernels_still_say_what_they_ask(condition: dict[str, str]) -> None:
    path = Path(sysconfig.get_path("purelib")) / condition["path"]
    assert condition["says"].encode() in path.read_bytes()
