"""Two API servers before one engine: the page of each shows the engine's figures, once."""

import asyncio
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

import models
import psutil  # type: ignore[import-untyped]
import pytest
from server import MODEL, Server, serve
from traffic import PREFIX, client, complete

BUILD = Path(__file__).parents[2] / "build" / "e2e"
KIND = "granitemoehybrid"
PATIENCE_S = 120.0
AT_ONCE = 8
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


def holder(server: Server, port: int) -> int | None:
    """Return the process of the server that holds a connection from a port."""
    for child in psutil.Process(server.pid).children(recursive=True):
        for connection in child.net_connections("tcp"):
            if connection.raddr and connection.raddr.port == port:
                return int(child.pid)
    return None


def pages(server: Server) -> dict[int, list[str]]:
    """Return the samples of ``/metrics`` by the process of the API server that answered."""
    found: dict[int, list[str]] = {}
    address = urlsplit(server.url)
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 2:
        assert time.monotonic() < deadline, f"only {sorted(found)} answered"
        with ExitStack() as opened:
            for _ in range(AT_ONCE):  # connections that stay open go to several servers
                connection = HTTPConnection(str(address.hostname), address.port, timeout=120)
                opened.enter_context(closing(connection))
                connection.request("GET", "/metrics")
                lines = connection.getresponse().read().decode().splitlines()
                process = holder(server, connection.sock.getsockname()[1])
                if process is not None:
                    found[process] = [line for line in lines if line and line[0] != "#"]
    return found


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_script(), reason="this build of vLLM has no `vllm serve`")
def test_each_of_two_api_servers_shows_the_figures_of_the_engine(tmp_path: Path) -> None:
    model = models.build(KIND, BUILD)
    budget = str(models.TOKENS_PER_STEP[KIND])
    options = ("--max-num-batched-tokens", budget, "--api-server-count", "2")
    with serve(model, "manager", tmp_path / "log", *options) as server:
        asyncio.run(ask(server))
        shown = pages(server)
    first, second = (
        [line for line in lines if line.startswith("hybrid_blocks_")] for lines in shown.values()
    )
    assert first == second
    series = [line.rpartition(" ")[0] for line in first]
    assert len(series) == len(set(series))
    assert all(label in line for line in first for label in LABELS)
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in first}
    (info,) = (name for name in values if name.startswith("hybrid_blocks_info{"))
    assert 'level="manager"' in info
    assert values[f'hybrid_blocks_blocks{{{",".join(LABELS)},state="free"}}'] > 0
    for lines in shown.values():
        done = [line for line in lines if line.startswith("vllm:request_success_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in done) == PROMPTS
