"""Conversations on vLLM's CPU engine, offloaded or not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rounds import Result, Round, prompt, run
from traffic import PREFIX

NUM_TURNS = 3
Options = dict[str, Any]


def offload(**options: Any) -> Options:
    """Return the KV connector that offloads by this package's spec, with options of the spec.

    Hits are counted, and a small model computes sooner than a busy disk reads.
    """
    connector: Options = {"kv_connector": "OffloadingConnector"}
    if "store" in options:
        connector["kv_connector"] = "HybridOffloadingConnector"
        connector["kv_connector_module_path"] = "hybrid_blocks.offload.connector"
    spec = {"spec_name": "HybridOffloadingSpec", "spec_module_path": "hybrid_blocks.offload"}
    extra = spec | {"read": "longest"} | options
    return connector | {"kv_role": "kv_both", "kv_connector_extra_config": extra}


def several(*connectors: Options) -> Options:
    """Return ``HybridMultiConnector`` over some connectors."""
    return {
        "kv_connector": "HybridMultiConnector",
        "kv_connector_module_path": "hybrid_blocks.offload.multi",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(connectors)},
    }


def talk(
    model: Path,
    *,
    num_chats: int,
    num_blocks: int,
    connector: Options | None,
    first_turn: int = 0,
    level: str = "off",
    options: Options | None = None,
    **more: Any,
) -> Result:
    """Hold ``num_chats`` conversations of three turns, turn by turn, from ``first_turn`` on.

    ``level`` is that of the plugin for the device, ``options`` are those of ``LLM``, and ``more``
    goes to `run`.
    """
    sizes = {"max_num_seqs": 2, "num_gpu_blocks_override": num_blocks}
    transfer = {"kv_transfer_config": connector} if connector else {}
    return run(
        model, level, _rounds(num_chats, first_turn), sizes | transfer | (options or {}), **more
    )


def _rounds(num_chats: int, first_turn: int) -> Sequence[Round]:
    # A chat's text does not depend on the answers, so that a run may begin at any turn.
    begins = [f"Chat {chat}. " + PREFIX[chat * 40 : chat * 40 + 300] for chat in range(num_chats)]
    texts = (it + PREFIX[:240] * turn for turn in range(first_turn, NUM_TURNS) for it in begins)
    return [[prompt(text, max_tokens=24)] for text in texts]
