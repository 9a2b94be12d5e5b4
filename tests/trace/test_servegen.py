"""Requests drawn from ServeGen's clients."""

import json
from pathlib import Path

import numpy as np
import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.trace import TraceError, generate_clients
from typer.testing import CliRunner

BUSY = ("0,0,0,,0,0", "600,2.5,1.0,Gamma,0.9,0.4", "1200,0.5,3.0,Weibull,0.5,1.0", "1800,0,0,,0,0")
QUIET = (
    "0,0.2,1.0,Gamma,1.0,5.0",
    "600,0.1,1.0,Weibull,1.0,10.0",
    "1200,0,0,,0,0",
    "1800,0,0,,0,0",
)
LENGTHS = (
    '{"0": {"input_tokens": "{}", "output_tokens": "{}"}, '
    '"600": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}", '
    '"reason_ratio": "{0.0: 1.0}"}}'
)
ALWAYS = '{"0": {"input_tokens": "{1000: 1e-3, 2000: 0.0}", "output_tokens": "{9: 0.25}"}}'


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    folder = tmp_path / "m-tiny"
    folder.mkdir()
    for number, (lines, lengths) in enumerate(((BUSY, LENGTHS), (QUIET, ALWAYS))):
        (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines) + "\n")
        (folder / f"chunk-{number}-dataset.json").write_text(lengths)
    return folder


def test_requests_have_the_rates_and_lengths_of_the_clients(clients: Path) -> None:
    trace = generate_clients(clients, 10_000)
    prompts = trace.prompt_tokens
    assert set(prompts.tolist()) == {100, 300, 1000}
    assert set(trace.output_tokens.tolist()) == {7, 9}
    first = trace.arrival < 600
    busy = first & (prompts < 1000)
    assert np.count_nonzero(busy) == pytest.approx(1500, rel=0.1)
    assert np.count_nonzero(first & (prompts == 1000)) == pytest.approx(60, rel=0.5)
    assert np.mean(prompts[busy] == 100) == pytest.approx(0.5, abs=0.05)
    assert (np.diff(trace.arrival) >= 0).all()
    assert trace.arrival[0] == 0
    assert trace.arrival[-1] < 1200


def test_equal_seeds_draw_equal_requests(clients: Path) -> None:
    one, same, other = (generate_clients(clients, 300, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.arrival, same.arrival)
    assert one.arrival.tolist() != other.arrival.tolist()
    assert len(one) == 300


def test_nothing_is_shared(clients: Path) -> None:
    trace = generate_clients(clients, 50)
    spans = sorted(zip(trace.span_first.tolist(), trace.span_count.tolist(), strict=True))
    ends = [first + count for first, count in spans]
    assert all(end <= first for end, (first, _) in zip(ends, spans[1:], strict=False))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("chunk-0-trace.csv", "0,1", r"chunk-0-trace.csv:1: second,rate,.* not 2"),
        ("chunk-0-trace.csv", "0,1,1,Poisson,1,1", "gaps by Poisson"),
        ("chunk-0-trace.csv", "0,1,1,Gamma,0,1", "shape 0"),
        ("chunk-0-trace.csv", "0,-1,1,Gamma,1,1", "-1 requests a second"),
        ("chunk-0-dataset.json", "{", "chunk-0-dataset.json"),
        ("chunk-0-dataset.json", '{"600": {"input_tokens": "{}"}}', "lacks"),
        (
            "chunk-0-dataset.json",
            '{"600": {"input_tokens": "{9999999999: 1.0}", "output_tokens": "{1: 1.0}"}}',
            "9,999,999,999 tokens",
        ),
        (
            "chunk-0-trace.csv",
            "second,rate,,,,",
            "chunk-0-trace.csv:1: second is 'second', no time",
        ),
        (
            "chunk-0-dataset.json",
            '{"nan": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}',
            "second is 'nan', no time",
        ),
        *(
            (
                "chunk-0-dataset.json",
                json.dumps({"600": {"input_tokens": shares, "output_tokens": "{1: 1.0}"}}),
                reason,
            )
            for shares, reason in (
                ("{100.7: 1.0}", "second 600 has '100.7: 1.0'; a number of tokens and its share"),
                ("{-100: 1.0}", "second 600 has '-100: 1.0'"),
                ("{100: -0.5, 7: 1.0}", "second 600 has '100: -0.5'"),
                ("hello", "second 600 has 'hello'"),
                ("{100: 1e999}", "endless share"),
                (f"{{{'9' * 30}: 1.0}}", "second 600 has '9999"),
            )
        ),
    ],
)
def test_a_damaged_client_is_named(clients: Path, file: str, content: str, reason: str) -> None:
    (clients / file).write_text(content)
    with pytest.raises(TraceError, match=reason):
        generate_clients(clients)


def test_a_folder_without_clients_is_refused(tmp_path: Path, clients: Path) -> None:
    with pytest.raises(TraceError, match="holds no ServeGen client"):
        generate_clients(tmp_path)
    (clients / "chunk-1-dataset.json").unlink()
    with pytest.raises(TraceError, match=r"chunk-1-dataset.json: No such file"):
        generate_clients(clients)


def test_clients_that_never_ask_are_refused(clients: Path) -> None:
    for number in (0, 1):
        (clients / f"chunk-{number}-trace.csv").write_text("0,0,0,,0,0\n600,0,0,,0,0\n")
    with pytest.raises(TraceError, match="no client asks"):
        generate_clients(clients)


def test_a_mark_of_the_byte_order_changes_nothing(clients: Path) -> None:
    plain = generate_clients(clients, 50)
    for file in clients.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    np.testing.assert_array_equal(generate_clients(clients, 50).arrival, plain.arrival)


@pytest.mark.parametrize("windows", ["0,900000,1,Gamma,1,1\n600,", "0,9,1,Gamma,1,1\n1e17,"])
def test_very_many_requests_are_not_drawn_to_their_end(clients: Path, windows: str) -> None:
    (clients / "chunk-0-trace.csv").write_text(f"{windows}0,0,,0,0\n")
    assert len(generate_clients(clients, 50)) == 50


def test_the_replay_takes_a_folder(clients: Path) -> None:
    options = ["--limit", "20", "--num-blocks", "unbounded"]
    result = CliRunner().invoke(app, ["replay", str(clients), *options])
    assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(app, ["replay", str(clients), "--format", "azure", *options])
    assert refused.exit_code == 2
    assert "folder of clients" in refused.output
