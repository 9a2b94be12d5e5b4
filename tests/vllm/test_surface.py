"""The record leaves nothing out: what the adapter names of vLLM is listed, and is there."""

import inspect
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from functools import reduce
from random import Random
from typing import Any

import adapter_reads
import pytest
from hybrid_blocks.vllm.level import VARIABLE
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.pool import BlockPool
from hybrid_blocks.vllm.scheduler import one_call as batched
from hybrid_blocks.vllm.surface import members
from oracle.engines import ENGINES
from oracle.scheduler_pair import Pair, Setup
from surface import CALLABLES, SURFACE, found_in, is_present, parameters_of

OURS = (BlockPool, NativeKVCacheManager, batched.Scheduler, batched.AsyncScheduler)

# Names that Python's own objects offer, and that the adapter asks of the logger.
_PYTHON = {name for kind in (dict, list, set, str, range, deque) for name in dir(kind)}
_PYTHON |= {"__name__", "__new__", "__init__", "__dict__", "__func__", "__mro__"}
_PYTHON |= {"__module__", "__qualname__", "environ", "modules"}
_PYTHON |= {"__code__", "__globals__", "co_names", *dir(property), *dir(ContextVar)}
_LOGGER = {"info", "info_once", "warning", "warning_once", "error", "disabled"}
_TORCH = {"all_gather_object", "distributed", "float32"}
_PYTHON |= {"enter_context", "loads", "read_text", "signature", "tolist", "unwrap"}
_OWN_BY_NAME = {"hybrid_blocks_level", "hybrid_blocks_provenance", "_hybrid_blocks"}
_OWN_BY_NAME |= {"hybrid_blocks_hooks"}
_OWN_BY_NAME |= {"close", "path", "put", "total_dropped"}  # members of the trace's recorder
_OWN_BY_NAME |= {"to_dict"}  # of a configuration of transformers
_OWN_BY_NAME |= {"parameters"}  # fields of the core's kinds
_OWN_BY_NAME |= {"nbytes", "options", "shape"}  # names on a state's tensors and a checkpoint policy


def listed() -> set[str]:
    names = {name for part in SURFACE["optional"].values() for name in part}
    names |= {
        name
        for section in ("parts", "live")
        for part in SURFACE[section].values()
        for name in part["attributes"]
    }
    parts = (SURFACE, SURFACE["forward"])
    names |= {name for part in parts for names in part["fields"].values() for name in names}
    names |= {name for part in parts for methods in part["callables"].values() for name in methods}
    names |= {name for part in SURFACE["only"].values() for it in part.values() for name in it}
    return names | {name for module in SURFACE["names"].values() for name in module}


def test_every_import_from_vllm_is_listed_and_nothing_else() -> None:
    names = {module: set(found) for module, found in SURFACE["names"].items() if module != "vllm"}
    assert names == adapter_reads.imports()


def test_each_tier_lists_what_it_imports_beside_the_tiers_before_it() -> None:
    entry = ("hybrid_blocks.vllm.attach", "hybrid_blocks.vllm.install")
    pool = adapter_reads.imported_with(*entry)
    manager = adapter_reads.imported_with(*entry, "hybrid_blocks.vllm.manager.native")
    scheduler = manager | adapter_reads.imported_with("hybrid_blocks.vllm.scheduler.one_call")
    natural = adapter_reads.imported_with(
        *(f"hybrid_blocks.vllm.{name}" for name in ("natural.install", "check")),
        *(
            f"hybrid_blocks.vllm.natural.{name}"
            for name in ("builder", "planning_functions", "platform")
        ),
    )
    assert pool < manager
    assert set(SURFACE["tiers"]["pool"]["names"]) == pool
    assert set(SURFACE["tiers"]["scheduler"]["names"]) == scheduler - manager
    # Some are imported by functions that only some engines call.
    assert set(SURFACE["tiers"]["natural"]["names"]) >= natural - scheduler


def test_every_attribute_that_the_adapter_uses_is_listed() -> None:
    known = listed() | adapter_reads.own_names() | _PYTHON | _LOGGER | _TORCH | _OWN_BY_NAME
    assert sorted(adapter_reads.attributes() - known) == []


def test_every_name_that_the_recorder_uses_is_compared_before_it_records() -> None:
    part = SURFACE["recorder"]
    compared = {name for names in part["fields"].values() for name in names}
    compared |= {name for methods in part["callables"].values() for name in methods}
    assert {"take_prefill_stats", "EngineCoreEventType"} < compared
    used = adapter_reads.names_in(adapter_reads.PLUGIN / "recorder.py") & listed()
    optional = {name for names in SURFACE["optional"].values() for name in names}
    assert sorted(used - compared - optional - _LOGGER - _PYTHON) == []


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__qualname__)
def test_every_member_of_vllm_that_a_class_overrides_is_listed(ours: type) -> None:
    is_vllms = [cls.__module__.partition(".")[0] == "vllm" for cls in ours.__mro__]
    theirs = [cls for cls, so in zip(ours.__mro__, is_vllms, strict=True) if so]
    mine = [cls for cls, so in zip(ours.__mro__, is_vllms, strict=True) if not so]
    own = {name for one in mine for name in vars(one) if not name.startswith("__")}
    functions = {it for cls in theirs for it in vars(cls) if inspect.isfunction(vars(cls)[it])}
    overridden = functions & own
    assert overridden
    listed_there = {
        name
        for cls in theirs
        for name in SURFACE["callables"].get(f"{cls.__module__}:{cls.__qualname__}", ())
    }
    assert sorted(overridden - listed_there) == []


@pytest.mark.parametrize(("owner", "method"), CALLABLES)
def test_the_native_manager_takes_what_vllms_takes(owner: str, method: str) -> None:
    if owner == "vllm.v1.core.kv_cache_manager:KVCacheManager":
        theirs = parameters_of(owner, method)
        ours = list(inspect.signature(getattr(NativeKVCacheManager, method)).parameters)
        assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("owner", SURFACE["optional"])
def test_the_tested_releases_have_what_another_one_may_lack(owner: str) -> None:
    assert sorted(set(SURFACE["optional"][owner]) - members(found_in(owner))) == []


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two schedulers with a running request each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "manager")
        pair = Pair(Setup(ENGINES["mamba-align-0"], is_async=False), Random(0))
        pair.arrive(max_tokens=20)
        pair.step()
        yield pair


@pytest.mark.parametrize("which", [0, 1], ids=["vllm", "ours"])
@pytest.mark.parametrize("path", SURFACE["live"])
def test_a_live_scheduler_has_these_attributes(pair: Pair, which: int, path: str) -> None:
    def follow(found: Any, step: str) -> Any:
        return found[int(step)] if step.isdigit() else getattr(found, step)

    found = reduce(follow, filter(None, path.split(".")), pair.schedulers[which])
    for attribute in SURFACE["live"][path]["attributes"]:
        assert hasattr(found, attribute) or not is_present(attribute), attribute


def test_a_request_keeps_in_its_dictionary_what_is_written_there(pair: Pair) -> None:
    written = adapter_reads.written_past_the_class() - _OWN_BY_NAME
    assert written
    for scheduler in pair.schedulers:
        request = scheduler.running[0]
        assert written <= set(vars(request))
        assert not any(hasattr(type(request), name) for name in written)
