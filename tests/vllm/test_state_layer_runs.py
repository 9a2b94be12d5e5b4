"""Each class of state layers leaves in one step the bytes of chunks that end at the checkpoints."""

import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.surface.support import TESTED
from hybrid_blocks.vllm.worker import state_layers
from process import python

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        releases.installed.name != TESTED[-1], reason="layers' attributes are the newest release's"
    ),
]

HERE = Path(__file__).parent
COVERED = tomllib.loads(Path(state_layers.__file__).with_suffix(".toml").read_text())["covered"]
INTERPRETED = {
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_TRITON_FORCE_FIRST_CONFIG": "1",
}


@cache
def runs(num_drafts: int) -> dict[str, Any]:
    variables = os.environ | INTERPRETED | {"NUM_DRAFTS": str(num_drafts)}
    variables.pop("VLLM_TARGET_DEVICE", None)
    done = python(HERE / "state_layer_runs.py", env=variables)
    assert not done.returncode, done.stderr[-6000:]
    answers = json.loads(done.stdout.splitlines()[-1])["answers"]
    return {answer["class"]: answer for answer in answers}


@pytest.mark.parametrize(
    ("name", "num_drafts"),
    [
        (row["class"], num_drafts)
        for row in COVERED
        for num_drafts in ((0, 2) if row.get("drafts", True) else (0,))
    ],
)
def test_pieces_leave_the_bytes_of_chunks(name: str, num_drafts: int) -> None:
    answer = runs(num_drafts)[name]
    # Each row's own state, those of its drafts, and its checkpoints.
    # A prompt that a layer took for drafts would leave states in the slots of its own drafts too.
    assert 9 < answer["num_states"] <= answer["changed_states"] <= answer["num_states"] + num_drafts
    assert answer["wrong_states"] == []
    assert answer["outputs_equal"]
    assert answer["is_finite"]
