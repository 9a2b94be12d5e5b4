"""The router of the examples reads vLLM's own events, and counts what the manager finds."""

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hybrid_blocks.vllm import installation
from hybrid_blocks.vllm.level import EVENTS, Level
from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .test_usable_events import Life

ROOT = Path(__file__).parents[3]


def test_the_router_counts_as_an_index_of_vllms_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    replica: Any = runpy.run_path(str(ROOT / "examples/router.py"))["Replica"]()
    monkeypatch.setenv(EVENTS, "usable")
    installation.install(Level.NATURAL)
    try:
        life = Life("full-state", 1, is_async=True)
        read = life.index.read

        def both(events: Any) -> None:
            events = list(events)
            read(events)
            replica.read(msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events)))

        life.index.read = both  # type: ignore[method-assign]
        for step in range(60):
            life.step()
            if step % 3 == 0:
                life.compare()
            for tokens, request in life.told.items():
                hashes = map(maybe_convert_block_hash, request.block_hashes)
                assert replica.count(tokens) == life.index.count(hashes)
        assert life.num_hits > 0
        assert (life.num_above, life.num_below) == (0, 0)
    finally:
        installation.uninstall()
