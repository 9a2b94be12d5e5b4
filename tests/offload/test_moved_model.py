"""A model named on a hub, whose branch moves between two starts over one disk and bucket."""

import shutil
from pathlib import Path
from typing import Any

import hub
import models
from named import BLOCK_TOKENS, NUM_TOKENS, run
from safetensors.torch import load_file, save_file

BUILD = Path(__file__).parents[2] / "build" / "e2e"
NAME = "makers/tiny"
FOUND = NUM_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS


def trained_on(model: Path, target: Path) -> Path:
    """Copy a model with the embeddings of other tokens, which changes every key and value."""
    shutil.copytree(model, target)
    weights = load_file(model / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].roll(1, 0).contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_restart_reads_nothing_of_weights_that_a_branch_has_left(tmp_path: Path) -> None:
    model = models.build("gemma3_text", BUILD)
    offload: dict[str, Any] = {
        "spec_name": "HybridOffloadingSpec",
        "spec_module_path": "hybrid_blocks.offload",
        "host": "64MiB",
        "disk": f"{tmp_path}/disk:1GiB",
        "objects": f"file://{tmp_path}/objects",
        "read": "longest",
    }
    with hub.serve(NAME) as served:
        variables = served.variables | {"HF_HOME": str(tmp_path / "home")}
        served.move(model)
        (first,) = run(NAME, [offload], variables)
        (again,) = run(NAME, [offload], variables)
        served.move(trained_on(model, tmp_path / "trained-on"))
        moved, alone = run(NAME, [offload, None], variables)
    assert (first.cached, again.cached, again.tokens) == (0, FOUND, first.tokens)
    assert (moved.cached, moved.tokens) == (0, alone.tokens)
    assert alone.tokens != first.tokens
