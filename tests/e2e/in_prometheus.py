"""A real Prometheus scrapes a served model: no query of the board is empty.

``make test-dashboard-served`` runs it. The model has all tiers of offload, and less memory than
its load needs.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import models
import pytest
from board import board
from grafana import expressions
from hybrid_blocks import metrics as figures
from scraper import answers, scraping
from server import Server, serve
from traffic import PREFIX, client, complete

MEMORY = ("--kv-cache-memory-bytes", str(6 * 2**20), "--max-num-batched-tokens", "256")
CHATS = 12
ABSENT = (
    *(figures.HELD_SLABS, figures.HELD_REFUSED, figures.STALLED_SLABS, figures.STALLED_READS),
    *(figures.RECORD_DROPPED, *figures.SHADOW),
)
"""Figures of prefill and decode apart, of a record, and of its replay: this engine has none."""
QUERIES = [
    query
    for query in expressions(board())
    if not any(f"{figure.name}{{" in query for figure in ABSENT)
]


def offload(folder: Path) -> str:
    (folder / "objects").mkdir()
    tiers = {
        "spec_name": "HybridOffloadingSpec",
        "spec_module_path": "hybrid_blocks.offload",
        "host": "16MiB",
        "disk": f"{folder / 'disk'}:1GiB",
        "objects": f"file://{folder / 'objects'}",
        "read": "longest",  # a small model computes sooner than a busy disk reads
    }
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    return json.dumps({**connector, "kv_connector_extra_config": tiers})


async def chat(server: Server, stop: Event) -> None:
    """Send prompts that return, more than fit, until ``stop``."""
    async with client(server) as api:
        while not stop.is_set():
            prompts = (f"{number} {PREFIX}" for number in range(CHATS))
            await asyncio.gather(*(complete(api, prompt, 8) for prompt in prompts))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes an engine under load."""
    folder = tmp_path_factory.mktemp("prometheus")
    model = models.build("granitemoehybrid")
    options = (*MEMORY, "--kv-transfer-config", offload(folder))
    with serve(model, "natural", folder / "server.log", *options) as server:
        stop = Event()
        load = Thread(target=lambda: asyncio.run(chat(server, stop)))
        load.start()
        try:
            with scraping(server.url.removeprefix("http://"), folder) as address:
                yield address
        finally:
            stop.set()
            load.join()


@pytest.mark.parametrize("query", QUERIES)
def test_no_query_is_empty(prometheus: str, query: str) -> None:
    found = answers(prometheus, query)
    assert found, query
    assert not any("NaN" in str(series["value"]) for series in found)
