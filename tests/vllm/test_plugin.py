"""Effects and messages of the plugin when vLLM calls it."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType

import hybrid_blocks.vllm
import pytest
import vllm
from hybrid_blocks import CheckpointPolicy, variables
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.profile.engine import Groups, make_scheduler
from hybrid_blocks.vllm import attach, install, recorder, releases, scheduler
from hybrid_blocks.vllm import level as levels
from hybrid_blocks.vllm.level import Level, requested
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager import hasher, kv_cache_manager
from hybrid_blocks.vllm.metrics import served
from hybrid_blocks.vllm.pool import BlockPool, VllmBlockPool
from hybrid_blocks.vllm.surface import Tier, differences, support
from surface import INSTALLED, RELEASE
from vllm.logger import _print_info_once, _print_warning_once
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.hisparse.block_pool import SharedEventQueueBlockPool
from vllm.v1.request import Request


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    install.uninstall()


def test_an_unknown_level_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "poll")
    with pytest.raises(InvalidArgumentError, match="'poll' is no choice; use off, pool, manager"):
        attach.register()


@pytest.mark.parametrize("variable", variables.VARIABLES, ids=lambda it: it.name)
def test_an_empty_variable_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, variable: variables.Variable
) -> None:
    monkeypatch.setenv(variable.name, "")
    attach.register()
    assert install.is_installed()
    assert requested() is Level.MANAGER
    assert variable.value({variable.name: ""}) == variable.value({}) == variable.default
    assert levels.is_checked() is False
    assert levels.schedules_in_one_call() is True
    assert levels.publishes_usable_only() is False
    assert levels.max_known_bytes() == 256 << 20
    assert levels.checkpoints() == str(CheckpointPolicy(variables.CHECKPOINTS.default))


@pytest.mark.parametrize(
    "name",
    [it.name for it in variables.VARIABLES if it not in (variables.LEVEL, variables.METRICS)],
)
def test_no_other_variable_stops_an_engine_at_off(
    monkeypatch: pytest.MonkeyPatch, notes: "Notes", name: str
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "off")
    monkeypatch.setenv(name, "no/such.value")
    if name == variables.RECORD_BYTES.name:
        monkeypatch.setenv(variables.RECORD.name, "traffic.jsonl")
    attach.register()
    assert not install.is_installed()
    assert VllmScheduler._free_request.__module__ == VllmScheduler.__module__
    reads = name in {it.name for it in (*variables.VARIABLES[-3:-1], variables.OFFLOAD)}
    told = [record.getMessage() for record in notes.records]
    goes_on = "HYBRID_BLOCKS=off goes on without it"
    assert [name in line and goes_on in line for line in told] == [True] * reads


@pytest.mark.parametrize("value", ["off", "false", "2", " "])
def test_the_check_is_asked_for_by_0_or_1(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS_CHECK", value)
    with pytest.raises(InvalidArgumentError, match=f"CHECK='{value}' is no choice; use 0, 1"):
        attach.register()
    assert not install.is_installed()


@pytest.mark.parametrize("level", ["off", "manager"])
@pytest.mark.parametrize("name", ["take_prefill_stats", "num_output_tokens"])
def test_a_vllm_without_what_the_recorder_reads_serves_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch, notes: "Notes", tmp_path: Path, level: str, name: str
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", level)
    monkeypatch.setenv(variables.RECORD.name, str(tmp_path / "traffic.jsonl"))
    monkeypatch.delattr(Request, name)
    free = VllmScheduler._free_request
    attach.register()
    attach.register()
    assert VllmScheduler._free_request is free
    told = [it.getMessage() for it in notes.records if "records no traffic" in it.getMessage()]
    assert len(told) == 1
    assert f"Request.{name} is gone; leave out HYBRID_BLOCKS_RECORD" in told[0]


def test_the_second_comparison_sees_vllm_below_the_recorder(
    monkeypatch: pytest.MonkeyPatch, notes: "Notes", tmp_path: Path
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "off")
    monkeypatch.setenv(variables.RECORD.name, str(tmp_path / "traffic.jsonl"))
    try:
        attach.register()
        assert VllmScheduler._free_request is recorder._free_request
        attach.register()
        assert notes.records == []
    finally:
        recorder.uninstall()


def test_modules_that_imported_the_pool_earlier_get_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_connector")
    early.Pool = VllmBlockPool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_connector", early)
    install.install()
    assert early.Pool is BlockPool
    install.uninstall()
    assert early.Pool is VllmBlockPool


def test_a_subclass_made_earlier_stands_on_our_pool() -> None:
    install.install()
    owner = BlockPool(4, True, 16, enable_kv_cache_events=True)
    shared = SharedEventQueueBlockPool(4, True, 16, enable_kv_cache_events=True, event_owner=owner)
    assert isinstance(shared, BlockPool)
    assert shared.kv_event_queue is owner.kv_event_queue
    install.uninstall()
    assert SharedEventQueueBlockPool.__bases__ == (VllmBlockPool,)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("get_request_block_hasher", hasher.get_request_block_hasher),
        # The second function tells whose figures an engine's are.
        ("resolve_kv_cache_block_sizes", served.resolve_kv_cache_block_sizes),
    ],
)
def test_the_engine_calls_our_functions(name: str, ours: object) -> None:
    from vllm.v1.engine import core  # noqa: PLC0415 - it takes long, and no other test needs it

    names = vars(core)
    vllms = names[name]
    install.install()
    assert names[name] is ours
    install.uninstall()
    assert names[name] is vllms


def test_a_release_that_changes_nothing_is_answered_by_the_last_one_that_did() -> None:
    newest = releases.release(support.TESTED[-1])
    later = releases.release("0.999")
    assert (type(later), later.name) == (type(newest), "0.999")
    oldest = releases.release("0.31")
    assert isinstance(newest, type(oldest))
    assert oldest.rules < newest.rules


OLDEST, NEWEST = support.TESTED[0], support.TESTED[-1]


@pytest.mark.parametrize(
    ("version", "is_tested", "release"),
    [
        *((f"{it}.9", True, it) for it in support.TESTED),
        *((it, True, it) for it in support.TESTED),
        *((f"{OLDEST}.0", True, OLDEST), (f"{NEWEST}.1+cpu", True, NEWEST)),
        *(("0.9.9", False, OLDEST), (f"{NEWEST}0.0", False, NEWEST)),
        *((it, False, NEWEST) for it in (f"1{NEWEST}.0", "1.0", "dev")),
    ],
)
def test_a_version_is_a_tested_one_or_compared_with_the_nearest(
    version: str, is_tested: bool, release: str
) -> None:
    assert support.is_tested(version) is is_tested
    assert support.nearest(version) == release


class Notes(logging.Handler):
    """Keeps the records of one logger, whatever becomes of them further up."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Yield the plugin's log. The test's vLLM is compared again, and forgotten after."""
    notes = Notes()
    monkeypatch.setattr(logger, "handlers", [notes])
    monkeypatch.setattr(logger, "disabled", False)
    # Whatever other code of the process has turned off or down.
    silenced, level = logging.root.manager.disable, logger.level
    logging.disable(logging.NOTSET)
    logger.setLevel(logging.INFO)
    levels._differences.cache_clear()
    _print_info_once.cache_clear()
    _print_warning_once.cache_clear()
    yield notes
    levels._differences.cache_clear()
    logger.setLevel(level)
    logging.disable(silenced)


def test_an_untested_version_with_an_equal_surface_runs_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.setattr(vllm, "__version__", f"{vllm.__version__.split('+')[0]}9.0")
    monkeypatch.setattr(support, "nearest", lambda _: RELEASE)
    monkeypatch.setattr(support, "is_tested", lambda _: False)
    attach.register()
    attach.register()
    assert kv_cache_manager.KVCacheManager.native is not None
    (record,) = notes.records
    assert record.levelno == logging.WARNING
    assert f"was tested with vLLM {support.tested_versions()}; " in record.getMessage()


def test_a_manager_that_differs_leaves_level_pool_and_is_named(
    monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "native", None)

    def allocate_slots(self: object, request: object, budget: int) -> None:
        """Take other arguments than the recorded function does."""

    monkeypatch.setattr(kv_cache_manager.VllmKVCacheManager, "allocate_slots", allocate_slots)
    attach.register()
    assert install.is_installed()
    assert kv_cache_manager.KVCacheManager.native is None
    (record,) = notes.records
    assert "runs at level pool, not manager" in record.getMessage()
    assert "KVCacheManager.allocate_slots lacks parameter num_new_tokens" in record.getMessage()
    assert "and has a new parameter budget;" in f"{record.getMessage()};".replace(". ", ";")


@pytest.mark.usefixtures("notes")
def test_level_natural_is_compared_if_a_lower_level_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    attach.register()
    granted = levels.grant(Level.NATURAL)
    assert (granted.level is Level.NATURAL) == INSTALLED.reaches(Tier.NATURAL)


def test_a_pool_that_differs_switches_us_off(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.setattr(VllmBlockPool, "defragment", lambda self: self, raising=False)
    monkeypatch.delattr(VllmBlockPool, "free_blocks")
    attach.register()
    assert not install.is_installed()
    (record,) = notes.records
    assert "runs at level off, not manager" in record.getMessage()
    assert "BlockPool.free_blocks is gone" in record.getMessage()
    assert "BlockPool.defragment is new" in record.getMessage()


def test_a_scheduler_that_differs_is_vllms(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    monkeypatch.delattr(VllmScheduler, "_free_request")
    monkeypatch.setattr(logger, "handlers", [notes])
    ours = hybrid_blocks.vllm.Scheduler
    assert ours is scheduler.Scheduler
    (record,) = notes.records
    assert "Scheduler._free_request is gone" in record.getMessage()
    levels._differences.cache_clear()
    monkeypatch.undo()
    assert hybrid_blocks.vllm.Scheduler is not ours


@pytest.mark.parametrize(
    ("asked", "why", "level"),
    [
        *[("natural", "a KV connector", logging.WARNING)] * INSTALLED.reaches(Tier.NATURAL),
        ("manager", None, logging.INFO),
    ],
)
def test_an_engine_below_the_level_that_was_asked_for_warns_once_and_says_why(
    monkeypatch: pytest.MonkeyPatch, notes: Notes, asked: str, why: str | None, level: int
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", asked)
    monkeypatch.setattr(logger, "handlers", [notes])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    monkeypatch.setattr(kv_cache_manager, "_REFUSALS", [])
    if why is not None:
        kv_cache_manager.note_refusal(why)
    attach.register()
    for _ in range(2):
        make_scheduler(Groups.FULL, num_requests=1, num_blocks=64, max_model_len=128)
    (record,) = (it for it in notes.records if "hybrid_blocks 0" in it.getMessage())
    assert record.levelno == level
    reason = f" ({why})" if why else ""
    assert f": level manager{reason}; groups: 1 FullAttention" in record.getMessage()


def test_the_comparison_with_the_installed_vllm_makes_few_calls() -> None:
    """Each process of an engine runs it. Signatures of all functions would be 50 times it."""
    differences(vllm.__version__)
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        differences(vllm.__version__)
    finally:
        sys.setprofile(None)
    assert 100 < num_calls < 40_000


def test_level_natural_is_granted_or_the_release_says_what_it_lacks() -> None:
    granted = levels.grant(Level.NATURAL)
    if INSTALLED.reaches(Tier.NATURAL):
        assert granted.level is Level.NATURAL
        return
    assert granted.level is Level.MANAGER
    assert "vllm.v1.worker.utils.customize_attention_spec is gone" in granted.differences
