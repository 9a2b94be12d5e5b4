"""Times of an engine's step: measured rows, and what is estimated beside them."""

import msgspec
import pytest
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.step_time import (
    DEFAULT_STEP_TOKENS,
    ESTIMATED,
    KNOTS,
    MEASURED,
    Row,
    StepTime,
    _estimate,
    record,
    step_time,
    step_tokens,
)
from hybrid_blocks.model import load_model

H100 = Deployment(card="H100-80GB")


def test_the_record_names_its_source_and_has_a_time_at_each_knot() -> None:
    about = record()
    assert about.source.startswith("aiconfigurator 0.12")
    assert about.knots == KNOTS
    assert len(about.rows) > 70
    assert all(len(row.ms) == len(KNOTS) for row in about.rows)
    assert all(row.error[0] < 5 and row.error[1] < 30 for row in about.rows)


@pytest.mark.parametrize(
    ("model", "least", "most"), [("Qwen3.5-27B", 250, 300), ("Qwen3.5-35B-A3B", 900, 1100)]
)
def test_a_step_of_an_h100_costs_the_tokens_of_its_model(model: str, least: int, most: int) -> None:
    found = step_time(load_model(model), H100)
    assert found is not None
    assert found.source == MEASURED
    assert least <= step_tokens(load_model(model), H100) <= most


def test_a_name_of_a_hub_finds_the_row_of_its_weights() -> None:
    model = load_model("Nemotron-3-Nano-30B-A3B")
    of_hub = msgspec.structs.replace(model, name="owner/Nemotron-3-Nano-30B-A3B-BF16")
    assert step_time(of_hub, H100) == step_time(model, H100)
    quantized = load_model("Nemotron-3-Nano-30B-A3B-NVFP4")
    b200 = Deployment(card="B200")
    row = step_time(quantized, b200)
    assert isinstance(row, Row)
    assert row.dtype == "nvfp4"
    assert row != step_time(model, b200)


def test_a_model_without_a_row_is_estimated_and_says_so() -> None:
    found = step_time(load_model("Nemotron-H-8B"), H100)
    assert found is not None
    assert found.source == ESTIMATED
    assert 200 < found.step_tokens < 400


def test_without_a_card_or_weights_a_step_costs_the_default() -> None:
    model = load_model("Qwen3.5-27B")
    assert step_time(model, Deployment()) is None
    assert step_tokens(model, Deployment()) == DEFAULT_STEP_TOKENS
    assert step_tokens(msgspec.structs.replace(model, weights=None, name="?"), H100) == 149


def test_lines_between_knots_go_on_behind_the_last() -> None:
    line = tuple(map(float, KNOTS))
    time = StepTime(ms=line, prompt=0.5, decode=2.0, context=0.25, pair=3.0, chunk=7.0)
    assert time.milliseconds(0, 10, 4, 0) == 10 + 20 + 1
    assert time.milliseconds(90, 10, 0, 2e6) == 100 + 45 + 20 + 6 + 7
    assert time.milliseconds(20_000, 0, 0, 0) == 20_000 + 10_000 + 7
    assert time.milliseconds(0, 0, 0, 0) == 1


STEPS = ((0, 16, 16_384, 0), (0, 64, 65_536, 0), (512, 8, 8192, 512 * 256), (8192, 8, 8192, 2**25))


@pytest.mark.parametrize(
    ("model", "card", "most"),
    [
        ("Qwen3.5-27B", "H100-80GB", 1.1),
        ("Qwen3.5-27B", "B200", 1.3),
        ("Qwen3.5-35B-A3B", "H100-80GB", 1.5),
        ("Qwen3.5-35B-A3B", "B200", 1.9),
        ("Nemotron-3-Nano-30B-A3B", "H100-80GB", 1.5),
        ("gpt-oss-20b", "H100-80GB", 1.6),
    ],
)
def test_an_estimate_on_one_card_is_near_the_measured(model: str, card: str, most: float) -> None:
    deployment = Deployment(card=card)
    measured = step_time(load_model(model), deployment)
    estimate = _estimate(load_model(model), deployment)
    assert measured is not None
    assert measured.source == MEASURED
    assert estimate is not None
    for step in STEPS:
        share = estimate.milliseconds(*step) / measured.milliseconds(*step)
        assert 1 / most < share < most, (step, share)
