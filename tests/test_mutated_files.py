"""Traces and logs, changed at random: each ends in a result or in one line of error."""

import mutated_files
import pytest
from hybrid_blocks.errors import HybridBlocksError
from mutated_files import FaultError, campaign, check_numbers, mutated, valid

SAMPLE = range(240)


def test_a_sample_of_mutated_files_ends_in_results_and_errors_of_one_line() -> None:
    counts = campaign(SAMPLE)
    assert counts["tracebacks"] == counts["faults"] == 0
    assert counts["files"] == counts["results"] + counts["errors said"] == len(SAMPLE)
    assert min(counts["results"], counts["errors said"]) > len(SAMPLE) // 5
    assert counts["lines passed over"] > len(SAMPLE)
    assert {mutated(number)[0] for number in SAMPLE} == {*valid()}


def test_a_number_gives_one_file() -> None:
    files = [mutated(number) for number in range(20)]
    assert files == [mutated(number) for number in range(20)]
    assert len(set(files)) == len(files)


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (KeyError("x"), "tracebacks"),
        (HybridBlocksError("short"), "faults"),
        (HybridBlocksError("an error that says why"), "errors said"),
    ],
)
def test_what_a_reader_raises_is_counted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    count: str,
) -> None:
    def fails(*_: object) -> None:
        raise error

    for name in ("_read", "read_requests"):
        monkeypatch.setattr(mutated_files, name, fails)
    counts = campaign([1, 2])
    assert counts[count] == 2
    assert ("file 1, " in capsys.readouterr().out) == (count != "errors said")


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), [{"a": (1, -0.5)}]])
def test_a_number_that_is_none_is_a_fault(value: object) -> None:
    check_numbers({"a": 1, "gains": [{"share": -0.1}]})
    with pytest.raises(FaultError, match=r"^\$\.b.* is "):
        check_numbers({"b": value})
