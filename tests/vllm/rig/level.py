"""A pytest plugin: turn a level on before vLLM's tests are imported, and note every outcome."""

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest

BATCHED = "batched"
"""Level ``manager`` as it is installed: the one-call scheduler in place of vLLM's two."""

NATURAL = "natural"
"""Slabs, also for the configurations that tests make by hand."""

_REACHED = ("reached", True)


def environment_of(level: str) -> dict[str, str]:
    """Return the variables that make pytest run at a level."""
    if level == BATCHED:
        return {"HYBRID_BLOCKS": "manager"}
    slabs = {"RIG_SLABS": "1"} if level == NATURAL else {}
    return {"HYBRID_BLOCKS": level, "HYBRID_BLOCKS_SCHEDULER": "off", **slabs}


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HYBRID_BLOCKS", "off") != "off":
        from hybrid_blocks.vllm import attach  # noqa: PLC0415 - imports vLLM

        attach.register()
        from rig import raw_cache  # noqa: PLC0415 - imports vLLM

        raw_cache.show()
    if os.environ.get("RIG_SLABS") == "1":
        from rig import slabs  # noqa: PLC0415 - imports vLLM

        config.pluginmanager.register(Reaches(slabs.swap()), "rig-reaches")
    # The process that hands out tests notes outcomes, not those that it starts.
    file = os.environ.get("RIG_OUTCOMES")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Notes(Path(file)), "rig-notes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are known to fail without the plugin."""
    file = os.environ.get("RIG_LEFT_OUT")
    known = set(Path(file).read_text().splitlines()) if file else set()
    if left_out := [item for item in items if item.nodeid in known]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in known]


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
    """Notes the outcome of every test, and writes all of them at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: dict[str, str] = {}
        self._reached: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "error"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.setdefault(report.nodeid, "passed")
        if report.failed:
            is_beside = report.when in {"setup", "teardown"}
            self._outcomes[report.nodeid] = "error" if is_beside else "failed"
        elif report.skipped:
            is_expected = hasattr(report, "wasxfail")
            self._outcomes[report.nodeid] = "xfailed" if is_expected else "skipped"
        if report.when == "teardown" and _REACHED in map(tuple, report.user_properties):
            self._reached.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        noted = {"outcomes": self._outcomes, "reached": self._reached}
        self._file.write_text(json.dumps(noted))
