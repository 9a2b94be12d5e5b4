"""The rig's own judgement: what counts as a regression and what does not."""

from pathlib import Path

import pytest
from rig import exemptions, hub_cache
from rig.verdict import judge, to_repeat


def test_a_test_that_passes_only_without_the_plugin_is_a_regression() -> None:
    verdict = judge({"a": "failed", "b": "passed"}, {"a": "passed"}, {})
    assert verdict.regressions == {"a": "failed"}
    assert not verdict.ok


def test_a_test_that_fails_without_the_plugin_too_is_reported_and_not_passed() -> None:
    verdict = judge({"a": "failed", "b": "passed"}, {"a": "failed"}, {})
    assert verdict.fails_without == {"a": "failed"}
    assert verdict.passed == ["b"]
    assert verdict.ok


def test_a_test_that_the_plugin_makes_skip_itself_is_a_regression() -> None:
    assert to_repeat({"a": "skipped", "b": "passed"}) == ["a"]
    assert not judge({"a": "skipped"}, {"a": "passed"}, {}).ok


def test_an_exempt_test_that_passes_must_leave_the_list() -> None:
    verdict = judge({"a": "passed"}, {}, {"a": "reads a private member"})
    assert verdict.stale == ["a"]
    assert not verdict.ok


@pytest.mark.parametrize(("num_passed", "ok"), [(19, True), (18, False)])
def test_at_most_one_test_in_twenty_may_be_exempt(num_passed: int, ok: bool) -> None:
    outcomes = {f"passed {i}": "passed" for i in range(num_passed)} | {"exempt": "failed"}
    verdict = judge(outcomes, {"exempt": "passed"}, {"exempt": "reads a private member"})
    assert verdict.ok is ok


def test_an_exemption_needs_a_reason_and_level_pool_has_none(tmp_path: Path) -> None:
    file = tmp_path / "exempt.toml"
    for entry in ('level = "manager"\nreason = ""', 'level = "pool"\nreason = "a good reason"'):
        file.write_text(f'[[exempt]]\ntest = "a"\n{entry}\n')
        with pytest.raises(ValueError, match="with a reason"):
            exemptions.load("manager", file)


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
