"""What the plugin does when vLLM calls it, and what it says."""

import logging
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import vllm
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.vllm import installation, plugin, request_hasher, support
from hybrid_blocks.vllm.block_pool import BlockPool, VllmBlockPool
from hybrid_blocks.vllm.level import Level, requested
from vllm.v1.core import block_pool as vllm_block_pool
from vllm.v1.hisparse.block_pool import SharedEventQueueBlockPool


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    installation.uninstall()


def test_without_the_variable_level_manager_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HYBRID_BLOCKS", raising=False)
    assert requested() is Level.MANAGER


def test_an_unknown_level_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "poll")
    with pytest.raises(InvalidArgumentError, match="'poll' names no level; use off, pool, manager"):
        plugin.register()


def test_off_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "off")
    plugin.register()
    assert not installation.is_installed()


def test_registering_twice_is_registering_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "pool")
    plugin.register()
    plugin.register()
    assert installation.is_installed()
    installation.uninstall()
    assert vllm_block_pool.BlockPool is VllmBlockPool


def test_modules_that_imported_the_pool_earlier_get_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    early = ModuleType("some_connector")
    early.Pool = VllmBlockPool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_connector", early)
    installation.install()
    assert early.Pool is BlockPool
    installation.uninstall()
    assert early.Pool is VllmBlockPool


def test_a_subclass_made_earlier_stands_on_our_pool() -> None:
    installation.install()
    owner = BlockPool(4, True, 16, enable_kv_cache_events=True)
    shared = SharedEventQueueBlockPool(4, True, 16, enable_kv_cache_events=True, event_owner=owner)
    assert isinstance(shared, BlockPool)
    assert shared.kv_event_queue is owner.kv_event_queue
    installation.uninstall()
    assert SharedEventQueueBlockPool.__bases__ == (VllmBlockPool,)


def test_the_engine_hashes_requests_with_our_hasher() -> None:
    from vllm.v1.engine import core  # noqa: PLC0415 - it takes long, and no other test needs it

    names = vars(core)
    vllms = names["get_request_block_hasher"]
    installation.install()
    assert names["get_request_block_hasher"] is request_hasher.get_request_block_hasher
    installation.uninstall()
    assert names["get_request_block_hasher"] is vllms


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1+cpu", "0.33"])
def test_supported_versions(version: str) -> None:
    assert support.is_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.330.0", "1.33.0", "dev"])
def test_unsupported_versions(version: str) -> None:
    assert not support.is_supported(version)


class Notes(logging.Handler):
    """Keeps what one logger is told, whatever becomes of it further up."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_another_version_gets_one_warning_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "pool")
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    notes = Notes()
    monkeypatch.setattr(plugin.logger, "handlers", [notes])
    plugin.register()
    plugin.register()
    assert not installation.is_installed()
    (record,) = notes.records
    assert record.levelno == logging.WARNING
    assert "it supports vLLM 0.32 and 0.33, and this is 0.34.0" in record.getMessage()
