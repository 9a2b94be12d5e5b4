"""A pytest plugin: turn a level on before vLLM's tests are imported, and record every outcome."""

import gc
import json
import os
from pathlib import Path

import pytest

_outcomes: dict[str, dict[str, str | float]] = {}


def pytest_configure() -> None:
    if os.environ.get("HYBRID_BLOCKS", "off") != "off":
        from hybrid_blocks.vllm import plugin  # noqa: PLC0415 - imports vLLM

        plugin.register()


def pytest_collection_finish() -> None:
    """Keep the million objects that imports leave out of every garbage collection.

    vLLM's fixtures unfreeze and collect after each test, which takes longer than most tests.
    """
    import torch._dynamo  # noqa: F401, PLC0415 - the fixtures reset it, so it is imported anyway

    gc.freeze()
    gc.unfreeze = lambda: None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _outcomes[report.nodeid] = {"outcome": "error", "seconds": 0.0}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    known = _outcomes.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    known["seconds"] = float(known["seconds"]) + report.duration
    if report.failed:
        known["outcome"] = "failed" if report.when == "call" else "error"
    elif report.skipped:
        known["outcome"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("RIG_OUTCOMES")
    if target and not hasattr(session.config, "workerinput"):
        Path(target).write_text(json.dumps(_outcomes, indent=1, sort_keys=True))
