"""The rig's own judgement: what counts as a regression and what does not."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from rig import exemptions, hub_cache, record
from rig.baseline import Baseline
from rig.progress import Progress
from rig.session import Session, watch
from rig.suites import SUITES, suites_at, targets
from rig.verdict import judge, to_repeat

REASON = "reads a private member"
VERDICTS: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str], str, object]] = {
    "passes without": ({"a": "failed"}, {"a": "passed"}, {}, "regressions", {"a": "failed"}),
    "skips itself": ({"a": "skipped"}, {"a": "passed"}, {}, "regressions", {"a": "skipped"}),
    "vanishes": ({"a": "passed"}, {"b": "passed"}, {}, "regressions", {"b": "missing"}),
    "fails without too": ({"a": "failed"}, {"a": "failed"}, {}, "fails_without", {"a": "failed"}),
    "passes with alone": ({"b": "passed"}, {"b": "failed"}, {}, "only_with", {"b": "failed"}),
    "is exempt and passes": ({"a": "passed"}, {}, {"a": REASON}, "stale", ["a"]),
}
"""Outcomes with the plugin and without, exempt tests, and what the verdict says of them."""


@pytest.mark.parametrize("case", VERDICTS)
def test_a_test_that_the_plugin_changes_for_the_worse_is_a_regression(case: str) -> None:
    outcomes, without, exempt, told, expected = VERDICTS[case]
    verdict = judge(outcomes | {"c": "passed"}, without, exempt)
    assert getattr(verdict, told) == expected
    assert verdict.ok is (told in {"fails_without", "only_with"})
    assert "c" in verdict.passed
    assert to_repeat({"a": "skipped", "b": "passed"}) == ["a"]


@pytest.mark.parametrize(("num_passed", "ok"), [(19, True), (18, False)])
def test_at_most_one_test_in_twenty_may_be_exempt(num_passed: int, ok: bool) -> None:
    outcomes = {f"passed {i}": "passed" for i in range(num_passed)} | {"exempt": "failed"}
    verdict = judge(outcomes, {"exempt": "passed"}, {"exempt": REASON})
    assert verdict.ok is ok


def test_an_exemption_needs_a_reason_and_level_pool_has_none(tmp_path: Path) -> None:
    file = tmp_path / "exempt.toml"
    for entry in ('level = "manager"\nreason = ""', 'level = "pool"\nreason = "a good reason"'):
        file.write_text(f'[[exempt]]\ntest = "a"\n{entry}\n')
        with pytest.raises(ValueError, match="with a reason"):
            exemptions.load("manager", file)


def test_the_scheduler_above_level_manager_has_its_exemptions_too(tmp_path: Path) -> None:
    file = tmp_path / "exempt.toml"
    entry = '[[exempt]]\ntest = "{0}"\nlevel = "{0}"\nreason = "reads a private member"\n'
    file.write_text(entry.format("manager") + entry.format("batched"))
    assert list(exemptions.load("batched", file)) == ["manager", "batched"]
    assert list(exemptions.load("manager", file)) == ["manager"]
    assert not exemptions.load("pool", file)


EXEMPT = {"a.py::T": "is about a private class", "a.py::test_f": REASON}


@pytest.mark.parametrize(
    ("test", "entry"),
    [
        ("a.py::T::test_m[1]", "a.py::T"),
        ("a.py::test_f[x::y]", "a.py::test_f"),
        ("a.py::test_f", "a.py::test_f"),
        ("a.py::test_fg", None),
        ("b.py::test_f", None),
    ],
)
def test_an_entry_covers_its_class_and_its_functions_parameters(
    test: str, entry: str | None
) -> None:
    assert exemptions.entry_of(test, EXEMPT) == entry


def test_an_entry_for_several_tests_may_stay_while_one_of_them_fails() -> None:
    tests = ["a.py::test_f[1]", "a.py::test_f[2]", "a.py::T::test_m"]
    verdict = judge(dict(zip(tests, ["passed", "failed", "passed"], strict=True)), {
        "a.py::test_f[2]": "passed",
    }, EXEMPT)  # fmt: skip
    assert verdict.exempt == {"a.py::test_f[2]": REASON}
    assert verdict.passed == [tests[2], tests[0]]
    assert verdict.stale == ["a.py::T"]


def test_a_level_that_swaps_what_a_suite_is_about_may_exempt_more() -> None:
    outcomes = {f"passed {i}": "passed" for i in range(9)} | {"exempt": "failed"}
    for level, ok in (("offload", True), ("manager", False)):
        share = exemptions.max_share(level)
        reasons = {"exempt": REASON}
        verdict = judge(outcomes, {"exempt": "passed"}, reasons, max_exempt_share=share)
        assert verdict.ok is ok


def test_what_reached_the_swapped_classes_is_counted(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")
    progress.note("a", "passed", has_reached=True)
    progress.note("b", "passed")
    progress.note("c", "failed", has_reached=True)
    progress.note("d", "failed", has_reached=True)
    verdict = judge(
        progress.outcomes(),
        {"c": "failed", "d": "passed"},
        {"d": REASON},
        reached=progress.reached(),
    )
    assert verdict.reached == ["a", "d"]
    assert "1 of them reached" in verdict.summary()
    assert verdict.counts()["passed or exempt, and reached"] == 2


def test_a_level_runs_only_the_suites_that_it_changes() -> None:
    assert suites_at("manager", list(SUITES)) == list(SUITES)
    assert suites_at("offload", list(SUITES)) == ["kv_offload", "offloading_connector"]
    assert targets(["offloading_connector"], quick=False)


def test_the_offload_manager_answers_under_the_name_of_vllms() -> None:
    from rig.offload import CpuManager  # noqa: PLC0415 - imports vLLM
    from vllm.v1.kv_offload.base import (  # noqa: PLC0415
        LookupResult,
        ReqContext,
        make_offload_key,
    )

    manager = CpuManager(num_chunks=4, enable_events=True)
    one, two, three = (make_offload_key(text, 0) for text in (b"1", b"2", b"3"))
    context = ReqContext("request")
    output = manager.prepare_store([one, two], context)
    assert output is not None
    assert output.keys_to_store == [one, two]
    assert len(set(vars(output.store_spec)["block_ids"])) == 2
    manager.complete_store([one, two], context)
    found = [manager.lookup(key, context) for key in (one, two, three)]
    assert found == [LookupResult.HIT] * 2 + [LookupResult.MISS]
    assert [event.keys for event in manager.take_events()] == [[one, two]]


def test_progress_tells_what_ended_and_what_was_running(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")
    assert progress.outcomes() == {}
    for test in ("a", "b"):
        progress.note_start(test)
    progress.note("a", "passed")
    with progress.file.open("a") as file:
        file.write('{"test": "b", "outco')  # killed while it wrote
    assert progress.outcomes() == {"a": "passed"}
    assert progress.unfinished() == ["b"]


def test_a_run_that_says_nothing_for_too_long_is_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    assert watch(process, Progress(tmp_path / "progress"), silence_s=0.2) == "hung"
    assert process.poll() is not None


VLLMS_TESTS = """
import os, pathlib, pytest

def note(name):
    with pathlib.Path(os.environ["SEEN"]).open("a") as file:
        file.write(name)

def test_a(): note("a")
def test_b(): note("b"); assert False
def test_c(): note("c"); os._exit(3)
def test_d(): note("d"); pytest.skip()
"""


@pytest.mark.full
def test_a_run_goes_on_after_a_test_that_kills_it_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(VLLMS_TESTS)
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    session = Session(tests=tmp_path, hub=tmp_path, logs=tmp_path, workers=1, code="code")
    tests = [f"test_it.py::test_{name}" for name in "abcd"]
    expected = ["passed", "failed", "crashed", "skipped"]
    outcomes = dict(zip(tests, expected, strict=True))
    assert session.run("it", "off", tests) == outcomes
    assert seen.read_text() == "abcd"
    assert session.run("it", "off", tests) == outcomes
    assert seen.read_text() == "abcd"
    session.forget("it", "off")
    assert len(session.run("it", "off", tests, leave_out=tests[1:])) == 1
    assert seen.read_text() == "abcda"


def test_a_suite_is_run_without_the_plugin_once(tmp_path: Path) -> None:
    class Runs(Session):
        def run(
            self, name: str, level: str, targets: list[str], leave_out: Iterable[str] = ()
        ) -> dict[str, str]:
            assert not list(leave_out)
            asked.append((name, level))
            return dict.fromkeys(targets, "failed")

    asked: list[tuple[str, str]] = []
    session = Runs(tests=tmp_path, hub=tmp_path, logs=tmp_path, workers=1, code="code")
    baseline = Baseline(session, tmp_path / "without")
    for _ in range(2):
        assert baseline.whole("core", ["a"]) == {"a": "failed"}
        assert baseline.of(["a", "b"]) == {"a": "failed", "b": "failed"}
    assert asked == [("core", "off"), ("asked", "off")]


def test_a_record_gathers_suites_and_levels(tmp_path: Path) -> None:
    verdict = judge({"a": "passed", "b": "failed"}, {"b": "failed"}, {})
    record.write(tmp_path, "core", "pool", verdict)
    file = record.write(tmp_path, "core", "manager", verdict)
    levels = json.loads(file.read_text())["levels"]
    for level in ("pool", "manager"):
        assert levels[level]["core"]["passed"] == 1
        assert levels[level]["core"]["not passed without the plugin either"] == {"failed": 1}


def test_the_hub_cache_resolves_every_model_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415
    from transformers import AutoConfig, AutoTokenizer  # noqa: PLC0415

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub_cache.write(tmp_path)
    for name in hub_cache.MODELS:
        found = try_to_load_from_cache(name, "config.json", cache_dir=tmp_path / "hub")
        assert isinstance(found, str)
        config = AutoConfig.from_pretrained(Path(found).parent)
        assert config.model_type == hub_cache.MODELS[name]["config.json"]["model_type"]
        tokenizer = AutoTokenizer.from_pretrained(Path(found).parent)
        assert tokenizer.decode(tokenizer.encode("Größe")) == "Größe"
