"""Settings of every test."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from leftovers import changes, plugins_are_loaded, state, take_back_the_plugin

# Other work on the machine must not fail a property. The usual run draws the same examples each
# time, `HYPOTHESIS_PROFILE=random` others, and `HYPOTHESIS_PROFILE=long` searches for hours.
# Beside the older vLLM `short` draws half, as the same code meets all of them beside the newer one.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("short", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("random", deadline=None)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))


# A package of vLLM's would otherwise start two processes with each import of vLLM.
os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_by_modules() -> Iterator[None]:
    """Fail where fixtures of a module leave something behind."""
    yield from _leaving_nothing("the tests of this module leave something behind")


@pytest.fixture(autouse=True)
def nothing_is_left(nothing_is_left_by_modules: None) -> Iterator[None]:  # noqa: ARG001
    """Fail a test that would decide what others find; it may run first or last."""
    yield from _leaving_nothing("this test leaves something behind")


def _leaving_nothing(complaint: str) -> Iterator[None]:
    before, were_loaded = state(), plugins_are_loaded()
    yield
    if plugins_are_loaded() and not were_loaded and not before.get("the plugin in vLLM"):
        take_back_the_plugin()
    assert not changes(before, state()), complaint


def computes_on_cpu() -> bool:
    """Return whether the installed vLLM has the CPU's operators; few environments have them."""
    vllm = find_spec("vllm")
    folders = vllm.submodule_search_locations if vllm else None
    return any((Path(folder) / "_C_AVX2.abi3.so").exists() for folder in folders or ())


NEED_CPU_OPERATORS = [
    *("e2e", "offload/test_apart.py", "offload/test_engine.py", "offload/test_killed.py"),
    "offload/test_moved_model.py",
]
collect_ignore = [] if computes_on_cpu() else NEED_CPU_OPERATORS

# Tests that import vLLM or torch. `pytest --without-vllm` leaves them out and says so, and
# `--only-vllm` leaves out the rest. Without these options all are collected, and fail where vLLM or
# torch is missing. A single test of another file that needs vLLM or torch is marked `vllm`.
TESTS = Path(__file__).parent
NEED_VLLM = [
    *("e2e", "kernels", "router", "vllm"),
    "architectures/test_record_equals_vllm.py",
    "hash/test_against_vllm.py",
    "offload/test_apart.py",
    "offload/test_engine.py",
    "offload/test_identity.py",
    "offload/test_identity_content.py",
    "offload/test_identity_fields.py",
    "offload/test_killed.py",
    "offload/test_manager_campaign.py",
    "offload/test_moved_model.py",
    "offload/test_multi_choice.py",
    "offload/test_nixl_over_slabs.py",
    "offload/test_nixl_refusals.py",
    "offload/test_offload_manager.py",
    "offload/test_rates.py",
    "offload/test_replacement.py",
    "offload/test_stores_before_clear.py",
    "offload/test_several_connectors.py",
    "offload/test_slab_worker.py",
    "offload/test_standing_still.py",
    "offload/test_surface_of_offload.py",
    "offload/test_tensor_parallel.py",
    "offload/test_workers.py",
    "plan/test_class_defaults_equal_vllm.py",
    "plan/test_embedding_defaults_equal_transformers.py",
    "plan/test_kv_formats_equal_vllm.py",
    "plan/test_pasted_equals_vllm.py",
    "plan/test_plan_equals_vllm.py",
    "plan/test_plan_runs_in_vllm.py",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-vllm", action="store_true", help="leave out what needs vLLM")
    parser.addoption("--only-vllm", action="store_true", help="leave out what needs no vLLM")


def needs_vllm(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / need) for need in NEED_VLLM)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("without_vllm") and needs_vllm(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without, only = config.getoption("without_vllm"), config.getoption("only_vllm")
    if without or only:
        needs = [bool(needs_vllm(item.path) or item.get_closest_marker("vllm")) for item in items]
        left_out = [item for item, need in zip(items, needs, strict=True) if need == without]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("without_vllm"):
        names = ", ".join(NEED_VLLM)
        terminalreporter.write_line(
            f"left out: tests marked vllm, {names}; `make test` runs them beside vLLM"
        )
