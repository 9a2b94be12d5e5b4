"""The plugin puts its schedulers in place of vLLM's two, and below classes derived from them."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks import variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.doctor import answer
from hybrid_blocks.tools.profile.engine import Groups, make_scheduler
from hybrid_blocks.vllm import attach, install, level, recorder
from hybrid_blocks.vllm.scheduler import batching, one_call
from hybrid_blocks.vllm.surface import support
from vllm.v1.core.sched import async_scheduler as vllms_async
from vllm.v1.core.sched import scheduler as vllms
from vllm.v1.core.sched.diffusion_scheduler import DiffusionAsyncScheduler


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    install.uninstall()


@pytest.fixture(autouse=True)
def at_level_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.delenv(variables.SCHEDULER.name, raising=False)


def made(cls: Any) -> Any:
    return make_scheduler(
        Groups.FULL, num_requests=4, num_blocks=64, max_model_len=64, scheduler_cls=cls
    )


class Instrumented(one_call.VllmAsyncScheduler):
    """Derived as public projects do, before the plugin is loaded."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(throttle_prefills)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return super().update_from_output(scheduler_output, model_runner_output)

    def has_requests(self) -> bool:
        return super().has_requests()


def test_both_names_are_ours_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_engine")
    early.Chosen = one_call.VllmAsyncScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_engine", early)
    for _ in range(2):
        attach.register()
        assert vllms.Scheduler is one_call.Scheduler
        assert vllms_async.AsyncScheduler is early.Chosen is one_call.AsyncScheduler
    install.uninstall()
    assert vllms.Scheduler is one_call.VllmScheduler
    assert vllms_async.AsyncScheduler is early.Chosen is one_call.VllmAsyncScheduler
    assert one_call.VllmAsyncScheduler.__bases__ == (one_call.VllmScheduler,)


def test_a_module_that_names_ours_itself_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_profile")
    early.Chosen = one_call.AsyncScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_profile", early)
    for _ in range(2):
        attach.register()
        install.uninstall()
        assert early.Chosen is one_call.AsyncScheduler


class Chosen(one_call.AsyncScheduler):
    """Derived from this package's own, by its name."""


def test_a_class_that_names_ours_itself_keeps_it() -> None:
    for _ in range(2):
        attach.register()
        assert made(Chosen)._decodes is not None
        install.uninstall()
        assert Chosen.__bases__ == (one_call.AsyncScheduler,)
        assert type(made(Chosen)) is Chosen


def test_a_class_that_derives_from_both_keeps_its_order() -> None:
    class Theirs(one_call.VllmAsyncScheduler):
        pass

    class Both(one_call.AsyncScheduler, Theirs):
        pass

    attach.register()
    assert Theirs.__bases__ == (one_call.VllmAsyncScheduler,)
    assert made(Both)._decodes is not None


def test_the_class_that_watches_one_call_for_the_coverage_stays() -> None:
    bases = answer._watched(is_async=False).__bases__
    attach.register()
    install.uninstall()
    assert answer._watched(is_async=False).__bases__ == bases


def test_an_engine_that_records_has_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(variables.RECORD.name, str(tmp_path / "traffic.jsonl"))
    level._differences.cache_clear()
    try:
        attach.register()
        assert level.scheduler_grant().reason is None
        assert made(vllms_async.AsyncScheduler)._decodes is not None
    finally:
        recorder.uninstall()
        level._differences.cache_clear()


def test_a_derived_class_has_it_too_and_keeps_its_own_methods_in_front() -> None:
    attach.register()

    class Later(vllms_async.AsyncScheduler):
        """Derived after the plugin is loaded."""

    for derived in (Instrumented, Later):
        assert made(derived)._decodes is not None
        order = derived.__mro__
        assert order.index(one_call.Scheduler) < order.index(one_call.VllmAsyncScheduler)
    assert DiffusionAsyncScheduler.__mro__.index(one_call.AsyncScheduler) > 0
    install.uninstall()
    assert Instrumented.__bases__ == (one_call.VllmAsyncScheduler,)
    assert one_call.Scheduler not in DiffusionAsyncScheduler.__mro__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (variables.SCHEDULER.name, "off"),
        (variables.LEVEL.name, "pool"),
        (variables.LEVEL.name, "off"),
    ],
)
def test_vllms_own_stay_if_asked(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    attach.register()
    assert vllms.Scheduler is one_call.VllmScheduler


def test_a_value_that_names_no_scheduler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.SCHEDULER.name, "on")
    with pytest.raises(InvalidArgumentError, match="'on' is no choice; use one-call, off"):
        attach.register()


def test_on_a_release_that_is_not_tested_vllms_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "is_tested", lambda _version: False)
    attach.register()
    assert install.is_installed()
    assert vllms.Scheduler is one_call.VllmScheduler


def test_the_log_says_how_to_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        one_call, "logger", SimpleNamespace(info=lambda *it: lines.append(it[0] % it[1:]))
    )
    attach.register()
    made(vllms_async.AsyncScheduler)
    assert lines == [
        "hybrid_blocks: decoding requests are scheduled in one call; HYBRID_BLOCKS_SCHEDULER=off "
        "switches this off, HYBRID_BLOCKS=off the whole plugin"
    ]


class Outputs(one_call.VllmScheduler):
    """Takes outputs in by a method of its own."""

    def _update_request_with_output(self, *args: Any, **kwargs: Any) -> Any:
        return super()._update_request_with_output(*args, **kwargs)


class Drafts(one_call.VllmScheduler):
    """Switches drafts off while it runs."""

    @property
    def num_spec_tokens(self) -> int:
        return 0

    @num_spec_tokens.setter
    def num_spec_tokens(self, value: int) -> None:
        pass


class Inherits(Outputs):
    """Has it from a class in between."""


class Queues(one_call.VllmScheduler):
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
        (one_call.Scheduler, None),
        (one_call.AsyncScheduler, None),
        (one_call.VllmAsyncScheduler, None),
    ],
)
def test_what_one_call_skips_keeps_requests_one_by_one(derived: type, part: str | None) -> None:
    attach.register()
    assert batching.foreign_reason(derived) == (part and f"vLLM's methods are replaced: {part}")
    if issubclass(derived, one_call.Scheduler):
        assert (made(derived)._decodes is None) is (part is not None)


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("owner", [one_call.VllmScheduler, one_call.Scheduler])
def test_a_method_that_another_plugin_patched_keeps_requests_one_by_one(
    monkeypatch: pytest.MonkeyPatch, owner: Any, is_wrapped: bool
) -> None:
    before = owner._make_cached_request_data

    def patched(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs)

    patch = functools.wraps(before)(patched) if is_wrapped else patched
    monkeypatch.setattr(owner, "_make_cached_request_data", patch, raising=False)
    told = "vLLM's methods are replaced: Scheduler._make_cached_request_data"
    assert batching.foreign_reason(one_call.AsyncScheduler) == told


def test_what_the_plugin_itself_replaces_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    if not support.is_tested("0.33") or not hasattr(one_call.VllmScheduler, "_drafts_unused"):
        pytest.skip("level natural needs vLLM 0.33")
    monkeypatch.setenv("HYBRID_BLOCKS", "natural")
    monkeypatch.setenv("HYBRID_BLOCKS_CHECK", "1")
    attach.register()
    assert batching.foreign_reason(vllms_async.AsyncScheduler) is None
