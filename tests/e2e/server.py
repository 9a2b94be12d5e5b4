"""vLLM's OpenAI server on loopback, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from ports import HOST, held_port

START_TIMEOUT_S = 600.0
MODEL = "hybrid"
KV_CACHE_BYTES = 2**30  # unless the options say otherwise


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, where it logs, and its process."""

    url: str
    log: Path
    pid: int

    def metrics(self) -> dict[str, float]:
        """Return ``/metrics``: the samples of each name, whatever their labels, summed."""
        totals: dict[str, float] = {}
        for (name, _), value in self.samples():
            totals[name] = totals.get(name, 0.0) + value
        return totals

    def samples(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield the samples of ``/metrics``: name and labels as they are written, and value."""
        with urlopen(f"{self.url}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        for line in lines:
            if line and not line.startswith("#"):
                key, _, value = line.rpartition(" ")
                name, _, labels = key.partition("{")
                yield (name, labels.removesuffix("}")), float(value)

    def pause(self) -> None:
        """Let requests queue up: no step is taken until `resume`, and the cache stays."""
        self._post("/pause?mode=keep&clear_cache=false")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._post("/resume")

    def reset_prefix_cache(self) -> None:
        """Forget all that no request holds."""
        self._post("/reset_prefix_cache")

    def resident_bytes(self) -> dict[str, int]:
        """Return the memory of the server and of the processes that it started, by their names."""
        total: dict[str, int] = {}
        for _, name, size in self._processes():
            total[name] = total.get(name, 0) + size
        return total

    def stop(self) -> None:
        """Halt the server and the processes that it started, where they are, as SIGSTOP does."""
        for process, _, _ in list(self._processes()):
            os.kill(process, signal.SIGSTOP)

    def kill(self) -> None:
        """End the server and the processes that it started as SIGKILL does: nothing is written."""
        for process, _, _ in list(self._processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, str, int]]:
        """Yield number, name and bytes in memory of the server and of what it started."""
        children: dict[int, list[int]] = {}
        memory: dict[int, tuple[str, int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name, _, fields = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                pages = int((folder / "statm").read_text().split()[1])
            except OSError:
                continue  # the process ended meanwhile
            process = int(folder.name)
            memory[process] = (name, pages * os.sysconf("SC_PAGE_SIZE"))
            children.setdefault(int(fields.split()[1]), []).append(process)
        waiting = [self.pid]
        while waiting:
            process = waiting.pop()
            yield (process, *memory.get(process, ("", 0)))
            waiting += children.get(process, [])

    def _post(self, path: str) -> None:
        with urlopen(Request(self.url + path, method="POST"), timeout=120):
            pass

    def log_text(self) -> str:
        """Return what the server has logged so far."""
        return self.log.read_text(errors="replace")


def command(model: Path, port: int, *options: str) -> list[str]:
    """Return the command that serves ``model``, in the type that its configuration names."""
    dtype = json.loads((model / "config.json").read_text())["dtype"]
    # The `vllm` script of the CPU build looks for a distribution of another name. It alone starts
    # several API servers.
    entry: tuple[str, ...] = ("vllm.entrypoints.openai.api_server",)
    if "--api-server-count" in options:
        entry = ("vllm.entrypoints.cli.main", "serve")
    return [
        *(sys.executable, "-W", "ignore", "-m", *entry),
        *("--model", str(model), "--served-model-name", MODEL),
        *("--host", HOST, "--port", str(port)),
        *("--dtype", dtype, "--enforce-eager", "--max-model-len", "1024"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
        *options,
    ]


ONE_BY_ONE = " one by one"
"""Stands behind a level whose requests vLLM's own scheduler takes one by one."""


def environment(level: str) -> dict[str, str]:
    """Return the environment variables of a vLLM that computes on the CPU, at a plugin level."""
    is_one_by_one = level.endswith(ONE_BY_ONE)
    variables = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HYBRID_BLOCKS": level.removesuffix(ONE_BY_ONE),
        "HYBRID_BLOCKS_SCHEDULER": "off" if is_one_by_one else "one-call",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for /pause and /resume
        "VLLM_TARGET_DEVICE": "cpu",  # the version of 0.33 does not name the CPU
    }
    variables.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override --kv-cache-memory-bytes
    # Set to nothing, 0.33 takes the GPU build's Triton for usable and fails at the first request.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables


@contextmanager
def serve(
    model: Path, level: str, log: Path, *options: str, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Serve ``model`` at a plugin level for the time of the context.

    ``variables`` are added to the environment.

    Raises ``RuntimeError`` with the end of the log if the server does not come up.
    """
    with held_port() as port, log.open("wb") as output:
        own, words = environment(level) | dict(variables or {}), command(model, port, *options)
        process = subprocess.Popen(words, env=own, stdout=output, stderr=output)
        try:
            server = Server(f"http://{HOST}:{port}", log, process.pid)
            wait_until_up(server.url, process, log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_up(url: str, process: "subprocess.Popen[Any]", log: Path) -> None:
    """Wait until a server answers.

    Raises ``RuntimeError`` with the end of its log if it ends or does not come up.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not come up:\n{log.read_text(errors='replace')[-4000:]}")
