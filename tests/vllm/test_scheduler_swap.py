"""The plugin puts its schedulers in place of vLLM's two, and below classes derived from them."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hybrid_blocks import variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.doctor import probe
from hybrid_blocks.tools.profile.engine import Groups, make_scheduler
from hybrid_blocks.vllm import (
    foreign_parts,
    grant,
    installation,
    plugin,
    recorder,
    scheduler,
    support,
)
from vllm.v1.core.sched import async_scheduler as vllms_async
from vllm.v1.core.sched import scheduler as vllms
from vllm.v1.core.sched.diffusion_scheduler import DiffusionAsyncScheduler


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    installation.uninstall()


@pytest.fixture(autouse=True)
def at_level_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.delenv(variables.SCHEDULER.name, raising=False)


def made(cls: Any) -> Any:
    return make_scheduler(
        Groups("full"),
        num_requests=4,
        num_blocks=64,
        max_model_len=64,
        max_num_batched_tokens=64,
        scheduler_cls=cls,
        is_natural=False,
        num_draft_tokens=0,
    )


class Instrumented(scheduler.VllmAsyncScheduler):
    """Derived as public projects do, before the plugin is loaded."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(throttle_prefills)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return super().update_from_output(scheduler_output, model_runner_output)

    def has_requests(self) -> bool:
        return super().has_requests()


def test_both_names_are_ours_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_engine")
    early.Chosen = scheduler.VllmAsyncScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_engine", early)
    for _ in range(2):
        plugin.register()
        assert vllms.Scheduler is scheduler.Scheduler
        assert vllms_async.AsyncScheduler is early.Chosen is scheduler.AsyncScheduler
    installation.uninstall()
    assert vllms.Scheduler is scheduler.VllmScheduler
    assert vllms_async.AsyncScheduler is early.Chosen is scheduler.VllmAsyncScheduler
    assert scheduler.VllmAsyncScheduler.__bases__ == (scheduler.VllmScheduler,)


def test_a_module_that_names_ours_itself_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_profile")
    early.Chosen = scheduler.AsyncScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_profile", early)
    for _ in range(2):
        plugin.register()
        installation.uninstall()
        assert early.Chosen is scheduler.AsyncScheduler


class Chosen(scheduler.AsyncScheduler):
    """Derived from this package's own, by its name."""


def test_a_class_that_names_ours_itself_keeps_it() -> None:
    for _ in range(2):
        plugin.register()
        assert made(Chosen)._decodes is not None
        installation.uninstall()
        assert Chosen.__bases__ == (scheduler.AsyncScheduler,)
        assert type(made(Chosen)) is Chosen


def test_a_class_that_derives_from_both_keeps_its_order() -> None:
    class Theirs(scheduler.VllmAsyncScheduler):
        pass

    class Both(scheduler.AsyncScheduler, Theirs):
        pass

    plugin.register()
    assert Theirs.__bases__ == (scheduler.VllmAsyncScheduler,)
    assert made(Both)._decodes is not None


def test_the_class_that_watches_one_call_for_the_coverage_stays() -> None:
    bases = probe._watched(is_async=False).__bases__
    plugin.register()
    installation.uninstall()
    assert probe._watched(is_async=False).__bases__ == bases


def test_an_engine_that_records_its_traffic_has_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variables.RECORD.name, str(tmp_path / "traffic.jsonl"))
    grant._differences.cache_clear()
    try:
        plugin.register()
        assert grant.scheduler_grant().reason is None
        assert made(vllms_async.AsyncScheduler)._decodes is not None
    finally:
        recorder.uninstall()
        grant._differences.cache_clear()


def test_a_derived_class_has_it_too_and_keeps_its_own_methods_in_front() -> None:
    plugin.register()

    class Later(vllms_async.AsyncScheduler):
        """Derived after the plugin is loaded."""

    for derived in (Instrumented, Later):
        assert made(derived)._decodes is not None
        order = derived.__mro__
        assert order.index(scheduler.Scheduler) < order.index(scheduler.VllmAsyncScheduler)
    assert DiffusionAsyncScheduler.__mro__.index(scheduler.AsyncScheduler) > 0
    installation.uninstall()
    assert Instrumented.__bases__ == (scheduler.VllmAsyncScheduler,)
    assert scheduler.Scheduler not in DiffusionAsyncScheduler.__mro__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (variables.SCHEDULER.name, "off"),
        (variables.LEVEL.name, "pool"),
        (variables.LEVEL.name, "off"),
    ],
)
def test_vllms_own_stay_where_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    plugin.register()
    assert vllms.Scheduler is scheduler.VllmScheduler


def test_a_value_that_names_no_scheduler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.SCHEDULER.name, "on")
    with pytest.raises(InvalidArgumentError, match="'on' names no scheduler; use one-call, off"):
        plugin.register()


def test_on_a_release_that_is_not_tested_vllms_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "is_tested", lambda _version: False)
    plugin.register()
    assert installation.is_installed()
    assert vllms.Scheduler is scheduler.VllmScheduler


def test_the_log_says_how_to_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(scheduler.logger, "info", lambda text, *values: lines.append(text % values))
    plugin.register()
    made(vllms_async.AsyncScheduler)
    assert lines == [
        "hybrid_blocks: decoding requests are scheduled in one call; HYBRID_BLOCKS_SCHEDULER=off "
        "switches this off, HYBRID_BLOCKS=off the whole plugin"
    ]


class Outputs(scheduler.VllmScheduler):
    """Takes outputs in by a method of its own."""

    def _update_request_with_output(self, *args: Any, **kwargs: Any) -> Any:
        return super()._update_request_with_output(*args, **kwargs)


class Drafts(scheduler.VllmScheduler):
    """Switches drafts off while it runs."""

    @property
    def num_spec_tokens(self) -> int:
        return 0

    @num_spec_tokens.setter
    def num_spec_tokens(self, value: int) -> None:
        pass


class Inherits(Outputs):
    """Has it from a class in between."""


class Queues(scheduler.VllmScheduler):
    """Has queues of its own and methods that are not vLLM's."""

    def _my_own(self) -> None:
        pass

    def add_request(self, request: Any) -> None:
        super().add_request(request)


@pytest.mark.parametrize(
    ("derived", "part"),
    [
        (Outputs, "Outputs._update_request_with_output"),
        (Drafts, "Drafts.num_spec_tokens"),
        (Inherits, "Outputs._update_request_with_output"),
        (Queues, None),
        (Instrumented, None),
        (scheduler.Scheduler, None),
        (scheduler.AsyncScheduler, None),
        (scheduler.VllmAsyncScheduler, None),
    ],
)
def test_what_one_call_would_skip_keeps_requests_one_by_one(
    derived: type, part: str | None
) -> None:
    plugin.register()
    assert foreign_parts.reason(derived) == (part and f"vLLM's methods are replaced: {part}")
    if issubclass(derived, scheduler.Scheduler):
        assert (made(derived)._decodes is None) is (part is not None)


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("owner", [scheduler.VllmScheduler, scheduler.Scheduler])
def test_a_method_that_another_plugin_patched_keeps_requests_one_by_one(
    monkeypatch: pytest.MonkeyPatch, owner: Any, is_wrapped: bool
) -> None:
    before = owner._make_cached_request_data

    def patched(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs)

    patch = functools.wraps(before)(patched) if is_wrapped else patched
    monkeypatch.setattr(owner, "_make_cached_request_data", patch, raising=False)
    assert foreign_parts.reason(scheduler.AsyncScheduler) == (
        "vLLM's methods are replaced: Scheduler._make_cached_request_data"
    )


def test_what_the_plugin_itself_replaces_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    if not support.is_tested("0.33") or not hasattr(scheduler.VllmScheduler, "_drafts_unused"):
        pytest.skip("level natural needs vLLM 0.33")
    monkeypatch.setenv("HYBRID_BLOCKS", "natural")
    monkeypatch.setenv("HYBRID_BLOCKS_CHECK", "1")
    plugin.register()
    assert foreign_parts.reason(vllms_async.AsyncScheduler) is None
