"""Engines leave prefill checkpoints where all state layers can, and say why they do not."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.reasons import REASONS
from hybrid_blocks.vllm import level
from hybrid_blocks.vllm.natural import prefill_checkpoints
from hybrid_blocks.vllm.natural.groups import make_config, make_groups
from hybrid_blocks.vllm.natural.prefill_checkpoints import ANY_POSITION, alignment
from hybrid_blocks.vllm.worker import runner_hooks, state_layers
from oracle.engines import full, mamba
from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

STATE: Any = mamba(1024, "align")
MARKED: Any = replace(STATE, block_stride_alignment=1)
TRIMMED = SimpleNamespace(enable_adaptive_verification=True)


@pytest.fixture(autouse=True)
def _taken_back() -> Iterator[None]:
    yield
    runner_hooks.uninstall()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons that were logged."""
    lines: list[str] = []
    logger = SimpleNamespace(
        info=lambda text, *more: lines.append(text % more),
        info_once=lambda text, *more: lines.append(text % more),
    )
    monkeypatch.setattr(prefill_checkpoints, "logger", logger)
    return lines


def config(**changes: Any) -> Any:
    made: dict[str, Any] = {
        "speculative_config": None,
        "parallel_config": SimpleNamespace(use_ubatching=False),
        "lora_config": None,
    }
    return SimpleNamespace(**made | changes)


def test_an_engine_whose_state_layers_are_all_marked_leaves_them_anywhere(told: list[str]) -> None:
    specs = {"a": full(16), "b": MARKED, "c": MARKED}
    assert alignment(config(), specs, "full") == ANY_POSITION == 1
    assert "after any token" in told[0]


def test_an_engine_without_states_says_nothing(told: list[str]) -> None:
    assert alignment(config(), {"a": full(16)}, "full") is None
    assert not told


@pytest.mark.parametrize(
    ("key", "changes", "specs", "checkpoint_format"),
    [
        ("unmarked_states", {}, {"b": MARKED, "c": STATE}, "full"),
        ("smaller_checkpoints", {}, {"b": MARKED}, "int8"),
        ("dbo", {"parallel_config": SimpleNamespace(use_ubatching=True)}, {"b": MARKED}, "full"),
        ("trimmed_drafts", {"speculative_config": TRIMMED}, {"b": MARKED}, "full"),
    ],
)
def test_an_engine_that_cannot_says_why(
    key: str, changes: Any, specs: Any, checkpoint_format: Any, told: list[str]
) -> None:
    assert alignment(config(**changes), specs, checkpoint_format) is None
    (line,) = told
    assert REASONS[key].keeps_from == "prefill checkpoints"
    assert REASONS[key].sentence.partition("{")[0] in line


def test_a_forward_is_left_whole_if_asked(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(level.FORWARD, "whole")
    assert spec_of(MambaMixer2, monkeypatch) == STATE
    assert alignment(config(), {"b": MARKED}, "full") is None
    assert all(level.FORWARD in line for line in told)
    assert len(told) == 2
    assert not state_layers._UNDO
    monkeypatch.setenv(level.FORWARD, "half")
    with pytest.raises(InvalidArgumentError, match="use pieces, whole"):
        alignment(config(), {"b": MARKED}, "full")


class Other:
    """A state layer that the table does not name."""

    is_draft_layer = False


def spec_of(
    kind: type, monkeypatch: pytest.MonkeyPatch, *, is_draft: bool = False, **changes: Any
) -> Any:
    monkeypatch.setattr(prefill_checkpoints, "vllm_get_kv_cache_spec", lambda *_: STATE)
    layer: Any = object.__new__(kind)
    if is_draft:
        monkeypatch.setattr(kind, "is_draft_layer", True)
    return prefill_checkpoints.get_kv_cache_spec(layer, config(**changes))


def test_a_layer_that_the_table_names_is_marked_and_runs_in_pieces(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    real = MambaMixer2.conv_ssm_forward
    assert spec_of(MambaMixer2, monkeypatch) == MARKED
    assert MambaMixer2.conv_ssm_forward is not real
    hooked = MambaMixer2.conv_ssm_forward
    assert spec_of(MambaMixer2, monkeypatch) == MARKED
    assert MambaMixer2.conv_ssm_forward is hooked
    assert spec_of(MambaMixer, monkeypatch) == MARKED
    assert not told
    runner_hooks.uninstall()
    assert MambaMixer2.conv_ssm_forward is real


@pytest.mark.parametrize(
    ("key", "kind", "changes"),
    [
        ("state_layer", Other, {}),
        ("drafted_states", MambaMixer, {"speculative_config": object()}),
        ("draft_states", MambaMixer2, {"is_draft": True}),
        ("adapted_states", MambaMixer, {"lora_config": object()}),
    ],
)
def test_a_layer_that_cannot_keeps_its_spec_and_the_log_says_why(
    key: str, kind: Any, changes: Any, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    assert spec_of(kind, monkeypatch, **changes) == STATE
    assert REASONS[key].sentence.format(layer=kind.__name__) in told[0]
    assert not state_layers._UNDO


@pytest.mark.parametrize("option", ["lora_config", "speculative_config"])
def test_adapters_and_drafts_change_nothing_for_layers_that_take_them(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {option: object()}
    assert spec_of(MambaMixer2, monkeypatch, **changes) == MARKED
    assert alignment(config(**changes), {"b": MARKED}, "full") == ANY_POSITION


def test_without_hooks_a_forward_stays(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    gone = level.Grant(level.Level.NATURAL, ("AttentionGroup.build_metadata is gone",))
    monkeypatch.setattr(prefill_checkpoints, "forward_grant", lambda: gone)
    assert spec_of(MambaMixer2, monkeypatch) == STATE
    assert "run vLLM's own forward" in told[0]
    assert "build_metadata is gone" in told[0]


@pytest.mark.parametrize("number", [None, 1])
def test_the_configuration_has_the_number_and_vllm_sees_no_checkpoints(number: int | None) -> None:
    stock = replace(MARKED, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=64)
    groups = make_groups({"a": full(16), "b": stock}, prefill_checkpoint_alignment=number)
    states = next(group.kv_cache_spec for group in groups if group.layer_names == ["b"])
    assert isinstance(states, type(STATE))
    assert (states.num_prefill_checkpoint_blocks, states.prefill_checkpoint_alignment) == (0, None)
    cache = SimpleNamespace(prefix_cache_retention_interval=None)
    engine: Any = SimpleNamespace(
        cache_config=cache, use_v2_model_runner=True, model_config=None, parallel_config=None
    )
    planned = make_config(engine, groups, 8)
    assert planned.prefill_checkpoint_alignment == number


def test_each_reason_that_ends_chunks_is_held_here() -> None:
    tables: Any = (
        test_an_engine_that_cannot_says_why,
        test_a_layer_that_cannot_keeps_its_spec_and_the_log_says_why,
    )
    held = {row[0] for table in tables for row in table.pytestmark[0].args[1]}
    held |= {"vllms_forward", "whole_forward"}
    ending = {key for key, it in REASONS.items() if it.keeps_from == "prefill checkpoints"}
    assert held == ending
