"""Times of a replay on a card, their targets, and the rate at which targets break."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import answer, failure
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.tools.cli.replay_asked import timed_config
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, ReplayError, block_cache, replay
from hybrid_blocks.tools.replay.cache import model_cache
from hybrid_blocks.tools.replay.config import Target
from hybrid_blocks.tools.replay.managers import VllmOptions
from hybrid_blocks.tools.replay.report import figures, rows
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.replay.timed import timed
from hybrid_blocks.tools.replay.times import MOST_STEPS, highest_step, rate_of, read_rate
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.builder import TraceBuilder

SECONDS = StepTime(ms=(1000.0,) * len(KNOTS))
TARGETS = "ttft_p95<1s,tpot_p50<40ms"


def config_of(slo: str, max_num_seqs: int = 256) -> EngineConfig:
    targets = tuple(map(Target.read, slo.split(",")))
    return EngineConfig(step_time=SECONDS, targets=targets, max_num_seqs=max_num_seqs)


def arriving(*seconds: float, prompt: int = 8, output: int = 3) -> Trace:
    builder = TraceBuilder("arriving")
    for arrival in seconds:
        own = builder.fresh(prompt + output)
        builder.add([own], arrival=arrival, prompt_tokens=prompt, output_tokens=output)
    return builder.build()


@pytest.mark.parametrize(
    ("text", "kind", "percentile", "seconds"),
    [
        ("ttft_p95<1s", "ttft", 95, 1.0),
        ("tpot_p50<40ms", "tpot", 50, 0.04),
        ("e2e_p9 < 1.5s", "e2e", 9, 1.5),
    ],
)
def test_a_target_is_a_percentile(text: str, kind: str, percentile: int, seconds: float) -> None:
    target = Target.read(text)
    assert (target.kind, target.percentile, target.seconds) == (kind, percentile, seconds)


@pytest.mark.parametrize(
    "text", ["ttft<1s", "ttft_p95>1s", "itl_p50<1s", "ttft_p95<1", "", "p95<1s"]
)
def test_another_form_of_a_target_is_refused(text: str) -> None:
    with pytest.raises(ReplayError, match="ttft_p95<1s"):
        Target.read(text)


def test_a_rate_is_a_factor_or_the_most() -> None:
    assert read_rate("1.5x") == 1.5
    assert read_rate("max") is None
    for text in ("1.5", "0x", "-1x", "x", "infx"):
        with pytest.raises(ReplayError, match=r"1\.5x, or max"):
            read_rate(text)


def test_goodput_counts_the_requests_that_keep_every_target() -> None:
    # One request runs at a time: the second waits for the three steps of the first.
    config, trace = config_of("ttft_p95<2s,tpot_p50<1s", max_num_seqs=1), arriving(0, 0, 100)
    result, _ = replay(trace, manager_name=ManagerName.RUST, cache=BLOCKS, config=config)
    times = result.times
    assert times is not None
    assert times.ttft_mean_ms == pytest.approx((1000 + 4000 + 1000) / 3)
    assert (times.ttft_p50_ms, times.tpot_p50_ms) == (1000, 1000)
    assert times.requests_per_second == 3 / 103
    assert times.tokens_per_second == 9 / 103
    assert times.goodput == 2 / 103
    assert times.targets == {"ttft_p95<2s": pytest.approx(3.7), "tpot_p50<1s": 1.0}
    assert times.within_targets is False


def test_pauses_of_followers_do_not_shrink_with_the_rate() -> None:
    trace = generate_workload("conversations", 0, 400, 1)
    fast = trace.faster(4)
    starts = trace.follows < 0
    assert starts.any()
    assert not starts.all()
    assert np.allclose(fast.arrival[starts], trace.arrival[starts] / 4)
    assert (fast.arrival[~starts] == trace.arrival[~starts]).all()


@pytest.mark.parametrize("edge", [-150, -33, -1, 0, 1, 15, 16, 17, 100, 159])
def test_the_highest_step_is_where_targets_break(edge: int) -> None:
    tried: list[int] = []

    def holds(step: int) -> bool:
        tried.append(step)
        return step <= edge

    assert highest_step(holds) == edge
    assert len(tried) < 17


def test_targets_that_always_or_never_hold_have_no_highest_step() -> None:
    assert highest_step(lambda _: True) == MOST_STEPS
    assert highest_step(lambda _: False) is None


def poisson(num_requests: int) -> Trace:
    """Requests of one length that share nothing and arrive independently, two a second."""
    arrivals = np.random.default_rng(7).exponential(0.5, num_requests).cumsum()
    return arriving(*arrivals.tolist(), prompt=1500, output=40)


@pytest.mark.parametrize("trace", [generate_workload("conversations", 0, 60, 1), poisson(80)])
def test_the_rate_equals_a_search_of_every_step(trace: Trace) -> None:
    cache = model_cache("Nemotron-H-8B", "2GiB", Deployment(card="H100-80GB"))
    config = timed_config(EngineConfig(max_num_seqs=8), cache, "ttft_p95<400ms,tpot_p50<12ms")
    ((result, _),) = timed(trace, cache, [Variant()], config, rate=None)
    assert result.times is not None
    assert result.times.is_highest
    assert result.times.within_targets
    found = round(16 * np.log2(result.times.rate))

    def holds(step: int) -> bool:
        ((at, _),) = timed(trace, cache, [Variant()], config, rate=rate_of(step))
        assert at.times is not None
        return at.times.within_targets is True

    highest = max(step for step in range(-24, 56) if holds(step))
    assert -24 < highest < 55
    assert abs(highest - found) <= 1


SETTINGS = [
    *(Variant(manager=ManagerName.VLLM, vllm=VllmOptions(retention=it)) for it in (0, None, 512)),
    Variant(),
]


def faked(monkeypatch: pytest.MonkeyPatch, breaks: dict[int | None, int]) -> list[float]:
    """Let targets of vLLM's settings break after steps of the grid, and ours after step 40."""
    rates: list[float] = []
    (result, timeline) = replay(
        arriving(0), manager_name=ManagerName.RUST, cache=BLOCKS, config=config_of("ttft_p95<1s")
    )

    def compare(trace: Trace, _cache: Any, variants: list[Variant], *_: Any, **__: Any) -> Any:
        rates.append(1 / float(trace.arrival[1]))
        step = round(16 * np.log2(rates[-1]))
        lasts = [
            breaks[it.vllm.retention] if it.manager is ManagerName.VLLM else 40 for it in variants
        ]
        assert result.times is not None
        times = [
            msgspec.structs.replace(result.times, within_targets=step <= last, ttft_mean_ms=-last)
            for last in lasts
        ]
        return [(msgspec.structs.replace(result, times=it), timeline) for it in times]

    monkeypatch.setattr("hybrid_blocks.tools.replay.timed.compare", compare)
    return rates


BLOCKS = block_cache(10, 16)


@pytest.mark.parametrize("rate", [None, 1.0])
def test_of_settings_the_default_and_the_best_are_shown(
    monkeypatch: pytest.MonkeyPatch, rate: float | None
) -> None:
    tried = faked(monkeypatch, {0: 5, None: 3, 512: 9})
    runs = timed(arriving(0, 1), BLOCKS, SETTINGS, config_of("ttft_p95<1s"), rate=rate)
    names = ["vllm default", "vllm 512, best of 3", "rust learned"]
    assert [result.variant for result, _ in runs] == names
    found = [result.times.rate for result, _ in runs if result.times is not None]
    assert found == ([1.0] * 3 if rate else [rate_of(step) for step in (5, 9, 40)])
    assert len(tried) == 1 if rate else len(tried) < 30


def test_a_default_that_is_the_best_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, {0: 5, None: 3, 512: -40})
    runs = timed(arriving(0, 1), BLOCKS, SETTINGS, config_of("ttft_p95<1s"), rate=None)
    assert [result.variant for result, _ in runs] == ["vllm default, best of 3", "rust learned"]


replayed = partial(answer, "replay")
LOAD = ("--workload", "conversations", "--limit", "40", "--max-num-seqs", "8")
OURS = ("--model", "Granite-4.0-H-Tiny", "--memory", "400MiB", "--manager", "rust")


def test_the_command_shows_times_beside_targets_with_host_memory(tmp_path: Path) -> None:
    file, page = tmp_path / "times.json", tmp_path / "page.html"
    clock = ("--clock", "H100-80GB", "--slo", TARGETS)
    output = replayed(*LOAD, *OURS, *clock, "--host", "64GiB", "--json", str(file))
    assert "times of H100-80GB: estimated from the model's shape" in output
    for row in ("time to first token", "time a token", "within all targets", "targets"):
        assert row in output
    alone, hosted = json.loads(file.read_bytes())
    assert hosted["variant"] == "rust learned and 64 GiB of host memory"
    assert hosted["host_tokens"] > 0
    assert set(alone["times"]["targets"]) == set(TARGETS.split(","))
    assert alone["card"] == "H100-80GB"
    replayed(*LOAD, *OURS, *clock, "--host", "64GiB", "--html", str(page))
    shown = page.read_text()
    first = f"{alone['times']['ttft_mean_ms']:,.0f} ms mean"
    assert f"output tokens a second: {hosted['times']['tokens_per_second']:,.0f}" in shown
    assert f"time to first token: {first}" in shown
    assert "loaded from host memory" in shown
    assert "64 GiB of host memory has no map: a map shows a device without host" in shown


def test_a_load_that_keeps_the_targets_at_any_rate_has_no_highest_rate() -> None:
    slow = ("--clock", "H100-80GB", "--rate", "max", "--slo")
    assert "all keep the targets" in replayed(*LOAD, *OURS, *slow, "ttft_p95<9s")
    assert "none keeps the targets" in replayed(*LOAD, *OURS, *slow, "ttft_p95<1ms")


def test_a_table_has_the_rows_of_all_columns_in_their_order() -> None:
    columns = [{"a": "1", "c": "2", "d": "3"}, {"a": "4", "b": "5", "d": ""}]
    expected = [("a", ["1", "4"]), ("b", ["", "5"]), ("c", ["2", ""]), ("d", ["3", ""])]
    assert list(rows(columns)) == expected


def test_the_verdict_names_the_variant_whose_first_token_comes_first() -> None:
    placements = ("--placement", "learned,none", "--workload", "tools", "--limit", "40")
    output = replayed(*OURS, *placements, "--max-num-seqs", "8", "--clock", "H100-80GB")
    match = re.search(
        r"verdict: rust learned: first token after (\S+) ms in the mean, rust none (\S+); .*\n"
        r" +rust learned finds",
        output,
    )
    assert match is not None, output
    assert float(match[1].replace(",", "")) < float(match[2].replace(",", ""))


def test_the_verdict_of_the_highest_rates_has_the_figures_of_its_table() -> None:
    placements = ("--placement", "learned,none", "--workload", "tools", "--limit", "40")
    highest = ("--rate", "max", "--slo", "ttft_p95<1s,e2e_p50<9s")
    clock = ("--max-num-seqs", "8", "--clock", "H100-80GB", *highest)
    output = replayed(*OURS, *placements, *clock)
    verdict = re.search(
        r"verdict: rust learned at \S+x: first token after \S+ ms in the mean, rust none at \S+x "
        r"\S+; requests a second within the targets: (\S+), there (\S+)\n",
        output,
    )
    assert verdict is not None, output
    row = re.search(r"within all targets +(\S+) +(\S+)\n", output)
    assert row is not None
    assert row.groups() == verdict.groups()


def test_targets_that_are_kept_are_not_named_as_broken() -> None:
    config, trace = config_of("ttft_p95<2s,tpot_p50<1s,e2e_p50<1s", max_num_seqs=1), arriving(0, 0)
    result, _ = replay(trace, manager_name=ManagerName.RUST, cache=BLOCKS, config=config)
    assert figures(result)["targets"] == (
        "broken: ttft_p95<2s: 3,850 ms, e2e_p50<1s: 4,500 ms; kept: tpot_p50<1s: 1,000 ms"
    )


def test_a_faster_card_is_faster_and_a_faster_rate_waits_longer(tmp_path: Path) -> None:
    file = tmp_path / "times.json"

    def times(*more: str) -> dict[str, Any]:
        model = ("--model", "Qwen3.5-27B", "--memory", "12GiB", "--manager", "rust")
        replayed(*LOAD, *model, "--json", str(file), *more)
        figures: dict[str, Any] = json.loads(file.read_bytes())
        return dict(figures["times"])

    slow, fast = times("--clock", "H100-80GB"), times("--clock", "B200")
    assert "measured kernels, bf16, 1.9 % off" in slow["clock"]
    assert slow["goodput"] is None
    assert fast["ttft_mean_ms"] < 0.8 * slow["ttft_mean_ms"]
    assert fast["tpot_p50_ms"] < 0.8 * slow["tpot_p50_ms"]
    rushed = times("--clock", "H100-80GB", "--rate", "8x")
    assert rushed["rate"] == 8
    assert rushed["ttft_mean_ms"] > slow["ttft_mean_ms"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slo", TARGETS), "--slo without --clock"),
        (("--rate", "2x"), "--rate without --clock"),
        (("--clock", "H100-80GB", "--rate", "max"), "give the targets that it keeps with --slo"),
        (("--clock", "H100-80GB", "--saturate", "--rate", "2x"), "arrive at once"),
        (("--clock", "H100-80GB", "--gpu", "H200"), "--gpu beside --clock"),
        (("--clock", "MI300X-2"), "--clock MI300X-2: no such card"),
        (("--clock", "0xH100"), "--clock '0xH100': write a card such as"),
        (("--clock", "48GiB"), "is not known there"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[str, ...], said: str) -> None:
    assert said in failure("replay", *LOAD, *OURS, *options)


def test_a_load_that_arrives_at_once_has_no_rate() -> None:
    cache = block_cache(10, 16)
    config = config_of("ttft_p95<1s")
    with pytest.raises(ReplayError, match="arrive at once"):
        timed(arriving(0, 0), cache, [Variant()], config, rate=2)


@pytest.mark.vllm
def test_vllm_stands_beside_at_its_default_and_at_the_best_of_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    load = ("--workload", "tools", "--limit", "60", "--max-num-seqs", "16")
    engine = ("--model", "Qwen3.5-27B", "--memory", "8GiB", "--clock", "H100-80GB")
    output = replayed(*load, *engine, "--json", str(file))
    default, *best, ours = json.loads(file.read_bytes())
    assert default["variant"].startswith("vllm default")
    assert all(", best of 7" in it["variant"] for it in best)
    assert all(it["times"]["ttft_mean_ms"] < default["times"]["ttft_mean_ms"] for it in best)
    assert ours["variant"] == "rust learned"
    assert ours["times"]["ttft_mean_ms"] < 0.9 * default["times"]["ttft_mean_ms"]
    assert "verdict: level natural: first token after " in output
