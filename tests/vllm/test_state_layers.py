"""The table of state layers names every class of vLLM's, and what it says of each holds."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from hybrid_blocks.model.layer import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConv,
    State,
)
from hybrid_blocks.vllm import releases
from hybrid_blocks.vllm.surface.support import TESTED
from hybrid_blocks.vllm.worker import state_layers

ROOT = Path(vllm.__file__).parent
TABLE = tomllib.loads(Path(state_layers.__file__).with_suffix(".toml").read_text())
BASE = "MambaBase"
PLANNED_AS: dict[str, type[State]] = {
    "MambaMixer": Mamba1,
    "MambaMixer2": Mamba2,
    "ShortConv": ShortConv,
    "QwenGatedDeltaNetAttention": GatedDeltaNet,
    "OlmoHybridGatedDeltaNetAttention": GatedDeltaNet,
    "KimiK3DeltaAttention": KimiDeltaAttention,
    "Glm5NextLinearAttention": KimiDeltaAttention,
    "BailingMoeV3KimiDeltaAttention": KimiDeltaAttention,
    "MiniMaxText01LinearAttention": LightningAttention,
    "BailingMoELinearAttention": LightningAttention,
}
"""The planner's kind of each covered class."""


def classes() -> dict[str, dict[str, ast.ClassDef]]:
    """Return the classes of vLLM's modules that may have states, by module and name."""
    found: dict[str, dict[str, ast.ClassDef]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "amba" in text or "Attention" in text:
            name = ".".join(("vllm", *path.relative_to(ROOT).with_suffix("").parts))
            nodes = ast.parse(text).body
            found[name] = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    return found


CLASSES = classes()


def with_states() -> Iterator[str]:
    """Yield ``module:class`` of each class that derives from vLLM's base of state layers."""
    bases = {BASE}
    listed: dict[str, str] = {}
    while True:
        new = {
            f"{module}:{name}": name
            for module, defined in CLASSES.items()
            for name, node in defined.items()
            if any(isinstance(base, ast.Name) and base.id in bases for base in node.bases)
        }
        if new.keys() == listed.keys():
            break
        listed, bases = new, {BASE, *new.values()}
    nodes = [node for defined in CLASSES.values() for node in defined.values()]
    derived_from = {it.id for node in nodes for it in node.bases if isinstance(it, ast.Name)}
    yield from (key for key, name in listed.items() if name not in derived_from)


def test_every_class_of_state_layers_is_in_the_table() -> None:
    named = {row["class"] for row in (*TABLE["covered"], *TABLE["uncovered"])}
    found = set(with_states())
    assert len(found) > 8
    assert not found - named, "say in state_layers.toml which arguments have an axis of tokens"
    if releases.installed.name == TESTED[-1]:
        assert not named - found, "take these out of state_layers.toml"


@pytest.mark.parametrize("row", TABLE["covered"], ids=lambda row: row["class"].partition(":")[2])
def test_methods_have_the_arguments_that_the_table_names(row: Any) -> None:
    module, _, name = row["class"].partition(":")
    if name not in CLASSES.get(module, {}) and releases.installed.name != TESTED[-1]:
        return
    bodies = [(CLASSES[module][name].body, method) for method in row["methods"]]
    for function in row.get("on_cpu", ()):
        path, _, method = function.partition(":")
        source = ROOT.parent / f"{path.replace('.', '/')}.py"
        bodies.append((ast.parse(source.read_text()).body, method))
    for body, method in bodies:
        (found,) = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == method]
        names = [argument.arg for argument in found.args.args]
        tensors = {
            argument.arg
            for argument in found.args.args
            if argument.annotation and ast.unparse(argument.annotation) == "torch.Tensor"
        }
        assert set(row["tokens"]) == tensors, names
        assert names[0] in ("self", "layer")
        assert "None" in ast.unparse(found.returns) if found.returns else True


def test_rows_that_multiply_weights_say_so() -> None:
    for row in TABLE["covered"]:
        module, _, name = row["class"].partition(":")
        if name not in CLASSES.get(module, {}):
            continue
        functions = [it for it in CLASSES[module][name].body if isinstance(it, ast.FunctionDef)]
        methods = [node for node in functions if node.name in row["methods"]]
        texts = [ast.unparse(node) for node in methods]
        projects = any("out_proj(" in text or "dense(" in text for text in texts)
        assert projects == row.get("projects", False), name


@pytest.mark.parametrize("row", TABLE["covered"], ids=lambda row: row["class"].partition(":")[2])
def test_the_replay_leaves_states_beside_drafts_where_the_layer_does(row: Any) -> None:
    planned = PLANNED_AS[row["class"].partition(":")[2]]
    assert row.get("drafts", True) == planned.is_left_beside_drafts


def test_a_derived_class_is_not_taken_for_its_base() -> None:
    class Derived(SimpleNamespace):
        pass

    Derived.__module__ = "vllm.model_executor.layers.mamba.mamba_mixer2"
    assert state_layers.row_of(Derived()) is None
    Derived.__qualname__ = "MambaMixer2"
    assert state_layers.row_of(Derived()) is not None
