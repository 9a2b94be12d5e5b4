"""The GPU benchmark's figures from its times, and a wrong result that its gate finds."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

BENCH = str(Path(__file__).parents[2] / "benches" / "kernels")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    yield mock.Mock(cases=import_module("cases"), summary=import_module("summary"))
    for name in ("cases", "summary", "peers"):
        sys.modules.pop(name, None)


def case_of(bench: Any, state: torch.Tensor) -> Any:
    def reference(i: int) -> None:
        state[i] = state[7]

    return bench.cases.Case("copy", [state], reference)


def test_a_right_call_passes_and_every_wrong_one_is_seen(bench: Any) -> None:
    state = torch.zeros(8, 33, dtype=torch.uint8)
    case = case_of(bench, state)

    def also_elsewhere(i: int) -> None:
        case.reference(i)
        state[5, 3] += 1

    def only_once(_: int) -> None:
        case.reference(0)

    with mock.patch.object(torch.cuda, "synchronize"):
        assert case.is_right(case.reference)
        case.reference(0)
        assert not case.is_right(lambda _: None), "an earlier result is not taken for this one's"
        assert not case.is_right(also_elsewhere)
        assert not case.is_right(only_once)


def test_a_reference_that_changes_nothing_is_an_error(bench: Any) -> None:
    state = torch.zeros(8, 33, dtype=torch.uint8)
    case = bench.cases.Case("nothing", [state], lambda _: None)
    with (
        mock.patch.object(torch.cuda, "synchronize"),
        pytest.raises(RuntimeError, match="the reference of 'nothing' changes nothing"),
    ):
        case.is_right(lambda _: None)


@pytest.mark.parametrize("state_format", ["int8", "fp8", "bf16"])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_conversion_changes_the_checkpoints_or_the_states(
    bench: Any, keeps: bool, state_format: str
) -> None:
    states = bench.cases.States(layers=2, heads=3, conv_channels=40, conv_columns=3)
    pools = states.apart(state_format, 4, "cpu")
    case = bench.cases.conversions(pools, 2, keeps=keeps)
    layout = pools.layout
    assert case.floor_bytes == 2 * 2 * (layout.page_bytes + layout.kept_bytes)
    running_bytes = 4 * 2 * layout.page_bytes
    before = pools.arena.clone()
    with mock.patch.object(torch.cuda, "synchronize"):
        case.reference(0)
        parts = (slice(running_bytes), slice(running_bytes, None))
        is_same = [torch.equal(pools.arena[part], before[part]) for part in parts]
        assert is_same == [keeps, not keeps]
        assert case.is_right(case.host)
        assert not case.is_right(lambda _: None)


def test_a_spread_is_the_median_between_the_tenth_and_the_ninetieth_percentile(bench: Any) -> None:
    spread = bench.summary.Spread.of([i * 1e-6 for i in range(1, 102)])
    assert spread.median == pytest.approx(51e-6)
    assert spread.cell(25.5e-6) == "51.0 (11.0 to 91.0) µs, 50.0%"
    assert spread.cell(None) == "51.0 (11.0 to 91.0) µs"


def test_the_table_of_a_record_has_a_row_for_each_case(bench: Any) -> None:
    path = Path(__file__).parents[2] / "benches/record"
    record = json.loads(next(path.glob("*-kernels-*.json")).read_text())
    right = record["cases"][0]
    wrong = {**right, "cupy": bench.summary.WRONG}
    slow_peer = {**right, "torch": bench.summary.FAILED}
    record["cases"] = [right, wrong, slow_peer]
    lines = bench.summary.table(record).splitlines()
    rows = [line for line in lines if line.startswith(f"| {right['case']} |")]
    assert rows[0].startswith(
        f"| {right['case']} | ≥ 85% | 91 to 95 / 88 to 93 % | 102 µs | 110.4 "
    )
    assert [row.split(" | ")[4] for row in rows[1:]] == ["WRONG RESULT", rows[0].split(" | ")[4]]
    assert [bench.summary.any_wrong(case) for case in record["cases"]] == [False, True, False]
    assert any(line.startswith("| gather, cupy, 8 KiB | 43.4 | 52.3 |") for line in lines)


def test_the_default_of_max_sms_is_enough_at_every_page_size(bench: Any) -> None:
    small = {1: 10.0, 2: 40.0, 4: 49.0, 8: 50.0}
    large = {1: 30.0, 2: 48.0, 4: 50.0, 8: 49.0}
    assert bench.summary.fewest_sms({8192: small, 32768: large}) == 4
    assert bench.summary.fewest_sms({32768: large}) == 2


def test_the_copy_engine_is_taken_from_where_it_stays_quicker(bench: Any) -> None:
    kernel = {(size, count): 50.0 for size in (8, 32, 128) for count in (1, 16)}
    engine = {**kernel, (8, 1): 5.0, (8, 16): 6.0, (32, 1): 20.0}
    assert bench.summary.engine_rules(engine, kernel) == [(32, 16), (128, 1)]
    assert bench.summary.engine_rules(dict.fromkeys(kernel, 1.0), kernel) == []


def test_an_entry_of_the_table_is_what_the_kernels_read(bench: Any) -> None:
    from hybrid_blocks.kernels.tuned import PREDICTED, entry  # noqa: PLC0415

    made = bench.summary.tuned_entry(
        {"gather": {"cupy": 2}, "scatter": {"cupy": 3}},
        {"gather": [(65536, 1)], "scatter": []},
        sources="0" * 16,
        date="2030-01-01",
    )
    predicted = made | {"copy_engine": {"gather": [], "scatter": [[28672, 16]]}}
    table = {PREDICTED: predicted, "card": made}
    tuned, other = entry("card", table), entry("another", table)
    assert (tuned.device, other.device) == ("card", PREDICTED)
    assert tuned.max_sms("scatter", "cupy") == 3
    assert tuned.max_sms("scatter", "naive") is None
    assert tuned.takes_copy_engine("gather", 65536, 1)
    assert not tuned.takes_copy_engine("scatter", 1 << 30, 1)
    taken = [other.takes_copy_engine("scatter", *it) for it in ((28672, 16), (28672, 15), (1, 99))]
    assert taken == [True, False, False]
