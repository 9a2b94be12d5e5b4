"""Options of ``profile`` that make no sense are refused before anything is run, in one line."""

from pathlib import Path

import pytest
from command import refusal


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ran(*_: object, **__: object) -> None:
        pytest.fail("it was run")

    monkeypatch.setattr("hybrid_blocks.tools.cli.profile.profile", ran)
    monkeypatch.setattr("hybrid_blocks.tools.cli.profile.need_vllm", lambda: None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json", "missing/step.json"], "missing"),
        (["--levels", "off,off"], "off"),
        (["--with", "video"], "video: no feature; give images, grammar"),
        (["--with", "images:2"], "images:2: no feature"),
        (["--with", "loras:0"], "loras 0: a number from 1 to 1,024 is needed"),
        (["--with", "dcp"], "dcp '': not a whole number"),
        (["--with", "images,images"], "images twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_makes_no_sense_is_named(options: list[str], said: str) -> None:
    error = refusal("profile", *options)
    assert said in error
    assert options[0] in error


def test_what_a_trace_makes_useless_is_refused_beside_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n')
    assert "--prompt-tokens" in refusal("profile", "--trace", trace, "--prompt-tokens", "7")
