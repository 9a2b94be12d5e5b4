"""Two API servers before one engine: the page of each shows the engine's figures, once."""

import asyncio
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import models
import pytest
from server import MODEL, Server, serve
from traffic import PREFIX, client, complete

KIND = "granitemoehybrid"
NUM_PAGES = 16
PROMPTS = 6
LABELS = ('engine="0"', f'model_name="{MODEL}"')


def has_script() -> bool:
    """Whether ``vllm serve`` starts: the CPU build's distribution has another name."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return False
    return True


async def ask(server: Server) -> None:
    async with client(server) as api:
        await asyncio.gather(*(complete(api, f"{at} {PREFIX}", 4) for at in range(PROMPTS)))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_script(), reason="this build of vLLM has no `vllm serve`")
def test_each_of_two_api_servers_shows_the_figures_of_the_engine(tmp_path: Path) -> None:
    model = models.build(KIND)
    budget = str(models.TOKENS_PER_STEP[KIND])
    options = ("--max-num-batched-tokens", budget, "--api-server-count", "2")
    with serve(model, "manager", tmp_path / "log", *options) as server:
        asyncio.run(ask(server))
        # Each page comes over a connection of its own, which either server may take.
        pages = [list(server.samples()) for _ in range(NUM_PAGES)]
    first, *others = ([it for it in page if it[0][0].startswith("hybrid_")] for page in pages)
    assert others == [first] * (NUM_PAGES - 1)
    values = dict(first)
    assert len(values) == len(first)
    assert all(label in labels for _, labels in values for label in LABELS)
    (info,) = (labels for name, labels in values if name == "hybrid_blocks_info")
    assert 'level="manager"' in info
    assert values["hybrid_blocks_blocks", f'{",".join(LABELS)},state="free"'] > 0
    for page in pages:
        done = [value for (name, _), value in page if name == "vllm:request_success_total"]
        assert sum(done) == PROMPTS
