"""One size of tensor parallelism loads chunks that another stored: vLLM's layers on the CPU."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.layout import Group, Groups, layout_versions
from hybrid_blocks.offload.layout.parts import Part, Structure, depth
from hybrid_blocks.offload.layout.structure import structure_of
from hybrid_blocks.offload.tiers import codec
from hybrid_blocks.vllm.log import logger
from ranks import GROUPS, TOKENS, Ranks
from vllm.model_executor.layers.mamba import mamba_utils
from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

SIZES = (1, 2, 4)
ALL, NONE = [True] * len(GROUPS), [False] * len(GROUPS)


def check(engine: Ranks) -> None:
    """Every cache of every rank holds what its heads and channels say."""
    num_caches = 0
    for rank in engine.ranks:
        for cache, expected in rank.contents(2):
            assert torch.equal(cache, expected)
            num_caches += 1
    # A group has two layers: keys and values, five pairs of convolution and state, one of either.
    assert num_caches == 2 * (TOKENS // engine.kernel_tokens + 5 * 2 + 2) * engine.tp_size


@pytest.mark.parametrize("to", SIZES)
@pytest.mark.parametrize("stored_by", SIZES)
def test_any_size_loads_what_any_other_stored(
    stored_by: int, to: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if to == 2:  # in several steps, each of what fits
        monkeypatch.setattr(codec, "_BUFFER_BYTES", 30_000)
    Ranks(stored_by, tmp_path).store()
    # Modules may have other names; where a layer stands is what counts.
    engine = Ranks(to, tmp_path, prefix="language_model.model")
    assert engine.load() == ALL
    check(engine)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_the_same_in_every_order_of_a_page(
    layout: str, by_channel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads or tokens first, also in blocks of the backend; channels or inputs first."""
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "DS" if by_channel else "SD")
    mamba_utils.get_conv_state_layout.cache_clear()
    try:
        for stored_by, to in ((1, 4), (4, 2)):
            folder = tmp_path / str(stored_by)
            folder.mkdir()
            options: dict[str, Any] = {"layout": layout, "kernel_tokens": TOKENS // 2}
            Ranks(stored_by, folder, **options).store()
            engine = Ranks(to, folder, **options)
            assert engine.load() == ALL
            check(engine)
    finally:
        mamba_utils.get_conv_state_layout.cache_clear()


def test_pages_in_another_order_are_a_miss(tmp_path: Path) -> None:
    Ranks(2, tmp_path).store()
    assert Ranks(1, tmp_path, layout="LBNHC").load() == NONE
    assert Ranks(1, tmp_path, kernel_tokens=TOKENS // 2).load() == NONE
    assert Ranks(1, tmp_path).load() == ALL


def test_one_rank_stores_what_lies_in_host_memory(tmp_path: Path) -> None:
    engine = Ranks(1, tmp_path)
    found = engine.codec
    assert found.stored_bytes == engine.manager._host._chunk_bytes
    assert all(it is not None and it.is_identity for it in found._codecs)
    engine.manager.shutdown()


def test_heads_on_several_ranks_are_stored_once(tmp_path: Path) -> None:
    def stored(tp_size: int) -> list[int]:
        engine = Ranks(tp_size, tmp_path)
        sizes = engine.codec.stored_bytes
        engine.manager.shutdown()
        return sizes

    assert stored(1) == stored(2) == stored(4)


def test_ranks_that_should_hold_the_same_heads_and_do_not_store_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *of: warnings.append(text % of))
    engine = Ranks(4, tmp_path)
    for rank in engine.ranks:
        rank.fill(1)
    # The second rank holds the first key and value head, as the first does.
    engine.ranks[1].groups[0][0].layer.kv_cache[1] += 1
    for rank in engine.ranks:
        rank.transfer(engine.offsets, 1, is_store=True)
    engine.write()
    (warning,) = warnings
    assert "should hold the same heads of group 0 do not" in warning
    assert Ranks(2, tmp_path).load() == [False, *ALL[1:]]


@pytest.mark.parametrize(("name", "bound"), [("bf16", 2**-8), ("fp8", 2**-4), ("int8", 1 / 254)])
def test_states_return_within_bounds_else_exactly(name: str, bound: float, tmp_path: Path) -> None:
    plain = Ranks(2, tmp_path)
    plain.store()
    Ranks(2, tmp_path, compress_states=name).store()
    engine = Ranks(4, tmp_path, compress_states=name)
    assert engine.load() == ALL
    num_states = 0
    for rank in engine.ranks:
        for cache, expected in rank.contents(2):
            if cache.dtype == torch.int16:
                assert torch.equal(cache, expected)
                continue
            num_states += 1
            assert not torch.equal(cache, expected)
            peak = expected.abs().amax(dim=tuple(range(1, expected.dim())), keepdim=True)
            largest = peak if name == "int8" else expected.abs()
            least = peak * 2**-10 / 448 if name == "fp8" else peak * 0
            allowed = torch.maximum(largest * bound, least) * (1 + 2**-20)
            assert ((cache - expected).abs() <= allowed).all()
    assert num_states == 2 * 5 * 4


def test_a_format_for_states_that_a_model_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no recurrent states of float32"):
        Ranks(1, tmp_path, kinds=["attention", "short_convolution"], compress_states="int8")


class _Unknown:
    """A layer of a plugin."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.kv_cache = torch.zeros(1)

    def get_kv_cache_spec(self, config: Any) -> Any:
        del config
        return self.spec

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return self.spec.shapes  # type: ignore[no-any-return]


def structure(layer: Any, tp_size: int, world_size: int | None = None) -> Structure:
    parallel = SimpleNamespace(tensor_parallel_size=tp_size, world_size=world_size or tp_size)
    compilation = SimpleNamespace(static_forward_context={"layers.1.x": layer})
    config: Any = SimpleNamespace(parallel_config=parallel, compilation_config=compilation)
    refs: Any = [SimpleNamespace(page_size_bytes=4096)]
    return structure_of(config, ["layers.1.x"], refs, TOKENS, "LBHNC")


def test_what_is_not_certain_holds_for_one_number_of_ranks() -> None:
    state = MambaSpec(block_size=TOKENS, shapes=((8, 128),), dtypes=(torch.float32,))
    for layer in (_Unknown(state), None):
        found = structure(layer, 2)
        assert found.parts() == [Part("opaque", 1, 2, 4096)]
    replicated = MambaSpec(
        block_size=TOKENS, shapes=((8, 128),), dtypes=(torch.float32,), tp_replicated=True
    )
    latent = MLAAttentionSpec(
        block_size=TOKENS, num_kv_heads=1, head_size=64, dtype=torch.bfloat16, max_tp_shards=1
    )
    for spec in (replicated, latent):
        found = structure(_Unknown(spec), 4)
        assert found.parts() == [Part("replicated", 1, 1, 4096)]
        # Ranks of other kinds of parallelism.
        assert structure(_Unknown(spec), 2, 4).parts() == [Part("opaque", 1, 4, 4096)]


def test_shares_of_unknown_structure_are_read_by_as_many_ranks_only() -> None:
    def version(num_ranks: int, parts: tuple[Part, ...]) -> list[bytes]:
        group = Group(number=0, tokens=16, rank_bytes=8 // num_ranks, parts=parts)
        groups = Groups(all=(group,), num_ranks=num_ranks, tokens_per_hash=16)
        return layout_versions(groups, {"model": "test"})

    assert version(2, ()) != version(1, ())
    known = (Part("key_value", 1, 2, 4),)
    assert version(2, known) == version(1, known) != version(2, ())


def test_states_in_another_format_are_others_and_attention_stays() -> None:
    parts = {0: Part("key_value", 1, 2, 4), 1: Part("recurrent", 1, 2, 4, is_float32=True)}
    all_groups = tuple(
        Group(number=it, tokens=16, rank_bytes=8, parts=(part,)) for it, part in parts.items()
    )
    groups = Groups(all=all_groups, num_ranks=1, tokens_per_hash=16)
    plain, smaller = (
        layout_versions(replace(groups, state_format=name), {}) for name in (None, "int8")
    )
    assert plain[0] == smaller[0]
    assert plain[1] != smaller[1]


def test_where_a_layer_stands_is_in_its_name() -> None:
    assert depth("model.layers.12.linear_attn") == [12]
    assert depth("language_model.model.layers.12.mixer") == [12]
    assert depth("mtp.layers.0.block.1.attn") == [0, 1]
