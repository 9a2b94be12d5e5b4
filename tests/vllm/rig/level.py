"""A pytest plugin: turn a level on before vLLM's tests are imported, and note every outcome."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from rig.progress import Progress

BATCHED = "batched"
"""Level ``manager`` as it is installed: the one-call scheduler in place of vLLM's two."""

OFFLOAD = "offload"
"""vLLM's own blocks, and this package's offload instead of vLLM's."""

NATURAL = "natural"
"""Slabs, also for the configurations that tests make by hand."""

_REACHED = ("reached", True)
_said: dict[str, str] = {}


def environment_of(level: str) -> dict[str, str]:
    """Return the variables that make pytest run at a level."""
    if level == BATCHED:
        return {"HYBRID_BLOCKS": "manager"}
    if level == OFFLOAD:
        return {"HYBRID_BLOCKS": "off", "HYBRID_BLOCKS_OFFLOAD": "1", "RIG_OFFLOAD": "1"}
    slabs = {"RIG_SLABS": "1"} if level == NATURAL else {}
    return {"HYBRID_BLOCKS": level, "HYBRID_BLOCKS_SCHEDULER": "off", **slabs}


def _progress(config: Any) -> Progress | None:
    """Return where to note outcomes: the process that hands out tests does, not those it starts."""
    file = os.environ.get("RIG_PROGRESS")
    return Progress(Path(file)) if file and not hasattr(config, "workerinput") else None


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HYBRID_BLOCKS", "off") != "off":
        from hybrid_blocks.vllm import attach  # noqa: PLC0415 - imports vLLM

        attach.register()
    if os.environ.get("RIG_OFFLOAD") == "1":
        from rig import offload  # noqa: PLC0415 - imports vLLM

        config.pluginmanager.register(Reaches(offload.swap()), "rig-reaches")
    if os.environ.get("RIG_SLABS") == "1":
        from rig import slabs  # noqa: PLC0415 - imports vLLM

        config.pluginmanager.register(Reaches(slabs.swap()), "rig-reaches")
    if progress := _progress(config):
        config.pluginmanager.register(Notes(progress), "rig-notes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an earlier, interrupted run has seen."""
    seen_file = os.environ.get("RIG_SEEN")
    seen = set(Path(seen_file).read_text().splitlines()) if seen_file else set()
    if left_out := [item for item in items if item.nodeid in seen]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in seen]


def pytest_collection_finish() -> None:
    """Keep the million objects that imports leave out of every garbage collection.

    vLLM's fixtures unfreeze and collect after each test, which takes longer than most tests.
    """
    import torch._dynamo  # noqa: F401, PLC0415 - the fixtures reset it, so it is imported anyway

    gc.freeze()
    gc.unfreeze = lambda: None


class Reaches:
    """Notes each test that reached a class of the level."""

    def __init__(self, reached: Any) -> None:
        self._reached = reached

    def pytest_runtest_setup(self) -> None:
        self._reached.clear()

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self._reached.it:
            item.user_properties.append(_REACHED)


class Notes:
    """Notes when a test starts and, at its end, what became of it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._progress.note(report.nodeid, "error")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._progress.note_start(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = _said.setdefault(report.nodeid, "passed")
        if report.failed:
            said = "error" if report.when in {"setup", "teardown"} else "failed"
        elif report.skipped:
            said = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        _said[report.nodeid] = said
        # A worker that dies leaves one report, which belongs to no phase.
        if report.when not in {"setup", "call"}:
            has_reached = _REACHED in map(tuple, report.user_properties)
            self._progress.note(report.nodeid, said, has_reached=has_reached)
