"""A model named on a hub, whose branch moves between two starts over one disk and bucket."""

from pathlib import Path
from typing import Any

import hub
import models
from conversations import offload
from rounds import run
from safetensors.torch import load, save
from traffic import PREFIX, encode

NAME = "makers/tiny"
NUM_TOKENS, BLOCK_TOKENS = 331, 32
FOUND = NUM_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_restart_reads_nothing_of_weights_that_a_branch_has_left(tmp_path: Path) -> None:
    model = models.build("gemma3_text")
    files = {it.name: it.read_bytes() for it in model.iterdir() if it.is_file()}
    weights = load(files["model.safetensors"])
    # Embeddings of other tokens change every key and value.
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].roll(1, 0).contiguous()
    trained_on = files | {"model.safetensors": save(weights, metadata={"format": "pt"})}
    disk, objects = f"{tmp_path}/disk:1GiB", f"file://{tmp_path}/objects"
    transfer = {"kv_transfer_config": offload(host="64MiB", disk=disk, objects=objects)}

    def serve(**options: Any) -> tuple[int, list[int]]:
        """Return how many of a prompt's tokens a new engine found, and its answer."""
        sampling = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
        # A request is written to the tiers below in the steps after its last one.
        rounds = [
            [{"tokens": it, "sampling": sampling}] for it in (encode(PREFIX * 2)[:NUM_TOKENS], [1])
        ]
        options |= {"dtype": "float32", "block_size": BLOCK_TOKENS}
        result = run(NAME, "natural", rounds, options, variables=variables)
        return result.cached[0], result.tokens[0]

    # A process without HF_HUB_OFFLINE knows the model by its name, others by a folder of a commit.
    with hub.serve(NAME) as makers:
        variables = makers.variables | {"HF_HOME": str(tmp_path / "home")}
        makers.move(files)
        found, first = serve(**transfer)
        assert found == 0
        assert serve(**transfer) == (FOUND, first)
        makers.move(trained_on)
        moved, alone = serve(**transfer), serve()
    assert moved == alone
    assert alone[0] == 0
    assert alone[1] != first
