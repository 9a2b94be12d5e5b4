"""The script for a card runs to its end without one, part by part, and finds nothing wrong."""

import json
import os
from pathlib import Path

import pytest
from process import printed_by_python, python

ROOT = Path(__file__).parents[2]
STATES = ROOT / "benches" / "states"


@pytest.mark.full
def test_each_part_runs_without_a_card_and_is_right(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    printed_by_python(STATES, "--dry", "--record", record)
    found = json.loads(record.read_text())
    assert [len(found[part]) for part in found["parts"]] == [2, 1, 1, 2]
    for bits in found["bits"]:
        assert all(it["wrong_states"] == [] for it in bits["answers"] if "wrong_states" in it)
    (cost,) = found["cost"]
    assert all("times" in row for row in cost["layers"].values())
    (convert,) = found["convert"]
    assert "wrong" not in json.dumps(convert)
    assert [one["level"] for one in found["first-token"]] == ["off", "natural"]
    assert all(one["first_token_mean_s"] > 0 for one in found["first-token"])


def test_without_a_card_it_says_so() -> None:
    without = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "python")}
    done = python(STATES, env=os.environ | without)
    assert done.returncode
    assert "not measured: no CUDA device is at hand" in done.stderr
