"""The rig's own judgement: what counts as a regression and what does not."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from rig import exemptions, hub_cache, record
from rig.baseline import Baseline
from rig.session import Session
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


EXEMPT = {"a.py::T::test_m": "is about a private class", "a.py::test_f": REASON}


@pytest.mark.parametrize(
    ("test", "entry"),
    [
        ("a.py::test_f[x::y]", "a.py::test_f"),
        ("a.py::test_f", "a.py::test_f"),
        ("a.py::test_fg", None),
        ("b.py::test_f", None),
    ],
)
def test_an_entry_covers_its_functions_parameters(test: str, entry: str | None) -> None:
    assert exemptions.entry_of(test, EXEMPT) == entry


def test_an_entry_for_several_tests_may_stay_while_one_of_them_fails() -> None:
    tests = ["a.py::test_f[1]", "a.py::test_f[2]", "a.py::T::test_m"]
    verdict = judge(dict(zip(tests, ["passed", "failed", "passed"], strict=True)), {
        "a.py::test_f[2]": "passed",
    }, EXEMPT)  # fmt: skip
    assert verdict.exempt == {"a.py::test_f[2]": REASON}
    assert verdict.passed == [tests[2], tests[0]]
    assert verdict.stale == ["a.py::T::test_m"]


def test_what_reached_the_swapped_classes_is_counted() -> None:
    outcomes = {"a": "passed", "b": "passed", "c": "failed", "d": "failed"}
    without = {"c": "failed", "d": "passed"}
    verdict = judge(outcomes, without, {"d": REASON}, reached={"a", "c", "d"})
    assert verdict.reached == ["a", "d"]
    assert "1 of them reached" in verdict.summary()
    assert verdict.counts()["passed or exempt, and reached"] == 2


VLLMS_TESTS = """
import ctypes, os, pytest

def test_a(): pass
def test_b(): assert False
def test_c(): os._exit(3)
def test_d(): pytest.skip()
def test_e(): ctypes.PyDLL(None).sleep(600)
def test_f(): pass
"""


@pytest.mark.full
def test_a_run_goes_on_after_tests_that_kill_it_or_hang_outside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(VLLMS_TESTS)
    monkeypatch.setattr("rig.session.TEST_TIMEOUT_S", 2)
    session = Session(tests=tmp_path, hub=tmp_path, logs=tmp_path, workers=1)
    tests = [f"test_it.py::test_{name}" for name in "abcdef"]
    expected = ["passed", "failed", "failed", "skipped", "failed", "passed"]
    outcomes = dict(zip(tests, expected, strict=True))
    assert session.run("it", "off", tests) == (outcomes, set())
    assert session.run("it", "off", tests, tests[1:]) == ({tests[0]: "passed"}, set())


def test_a_suite_is_run_without_the_plugin_once(tmp_path: Path) -> None:
    class Runs(Session):
        def run(
            self, name: str, level: str, targets: list[str], leave_out: Iterable[str] = ()
        ) -> tuple[dict[str, str], set[str]]:
            assert not list(leave_out)
            asked.append((name, level))
            return dict.fromkeys(targets, "failed"), set()

    asked: list[tuple[str, str]] = []
    session = Runs(tests=tmp_path, hub=tmp_path, logs=tmp_path, workers=1)
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


def test_the_hub_cache_resolves_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
