"""The record holds every name of vLLM that the offload package uses beyond its interfaces."""

import ast
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import hybrid_blocks.offload
import pytest
import vllm
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.vllm import surface
from hybrid_blocks.vllm.surface import members, part_differences, support
from surface import SURFACE

CONNECTORS = ("multi", "nixl", "slabs")  # `make drift` compares the names that these use
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(hybrid_blocks.offload.__path__, "hybrid_blocks.offload.")
    if not module.name.split(".")[2].startswith(CONNECTORS)
]


def own_names(module: ModuleType, cls: ast.ClassDef) -> set[str]:
    """Attributes that a class writes and that no class of vLLM, which it derives from, names."""
    theirs = [it for it in getattr(module, cls.name).__mro__ if it.__module__.startswith("vllm")]
    named = [node for node in ast.walk(cls) if isinstance(node, ast.Attribute)]
    written = {node.attr for node in named if isinstance(node.ctx, ast.Store)}
    return written.difference(*map(members, theirs))


def private_names_of_vllm() -> set[str]:
    """Private attributes that the package uses and no class or module in it defines."""
    used, own = set(), set()
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Attribute(attr=name):
                    used.add(name)
                case ast.FunctionDef(name=name):
                    own.add(name)
                case ast.ClassDef():
                    own |= own_names(module, node)
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def test_every_private_name_of_vllm_is_recorded() -> None:
    recorded = {name for names in SURFACE["offload"]["fields"].values() for name in names}
    assert private_names_of_vllm() == {it for it in recorded if it.startswith("_")}


def test_the_installed_vllm_is_what_was_recorded() -> None:
    assert part_differences("offload", vllm.__version__) == []


def test_a_vllm_without_what_the_spec_imports_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "part_differences", lambda *_: ["a name is gone"])
    newest = support.TESTED[-1]
    with pytest.raises(HybridBlocksError, match=f"a name is gone; use vLLM {newest}, or"):
        _ = hybrid_blocks.offload.HybridOffloadingSpec


def test_a_vllm_that_differs_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.kv_offload.base import ReqContext  # noqa: PLC0415 - for this test alone
    from vllm.v1.kv_offload.cpu import gpu_worker  # noqa: PLC0415

    def other(tensor: Any, block: int) -> None:
        del tensor, block

    monkeypatch.setattr(gpu_worker, "compute_sub_block_ptrs", other)
    monkeypatch.setattr(gpu_worker, "CPUOffloadingWorker", ReqContext)
    (lacks, *gone) = reversed(part_differences("offload", vllm.__version__))
    assert "compute_sub_block_ptrs lacks parameter" in lacks
    assert len(gone) == 4
    assert all(it.endswith("is gone") for it in gone)
    with pytest.raises(HybridBlocksError, match=r"does not fit vLLM .*_load_handler is gone"):
        HybridOffloadingSpec(None)  # type: ignore[arg-type]
