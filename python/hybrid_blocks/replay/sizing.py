"""How many blocks a model has in a given memory.

This is the only place that turns a model and bytes into blocks.
"""

import re
from pathlib import Path

import msgspec

from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.trace import Trace

UNBOUNDED = "unbounded"

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}


class Attention(msgspec.Struct, frozen=True):
    """The fields of a Hugging Face ``config.json`` that size a full-attention cache."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers in 16 bits: ``2 * layers * kv_heads * head_dim * 2``."""
        kv_heads = self.num_key_value_heads or self.num_attention_heads
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return 2 * self.num_hidden_layers * kv_heads * head_dim * 2


# From the models' own config.json.
MODELS = {
    "Llama-3.1-8B": Attention(32, 32, 8, 128),
    "Llama-3.1-70B": Attention(80, 64, 8, 128),
    "Qwen3-8B": Attention(36, 32, 8, 128),
    "Qwen3-32B": Attention(64, 64, 8, 128),
}


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``1.5 GB`` or ``4096``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2] not in _UNITS:
        raise ReplayError(f"{text!r} is not a size; write for example 24GiB or 8000MB")
    return int(float(match[1]) * _UNITS[match[2]])


def bytes_per_token(model: str) -> int:
    """Return the cache bytes of one token, for a known name or a path to a ``config.json``."""
    if model in MODELS:
        return MODELS[model].bytes_per_token
    path = Path(model)
    if not path.is_file():
        raise ReplayError(
            f"unknown model {model!r}; known: {', '.join(MODELS)}, or a path to a config.json"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=Attention).bytes_per_token
    except msgspec.MsgspecError as error:
        raise ReplayError(f"{path} does not size a full-attention cache: {error}") from error


def num_blocks_for(
    trace: Trace,
    *,
    model: str,
    memory: str,
    block_size: int,
    num_blocks: str | None = None,
) -> int:
    """Return the size of the pool.

    ``num_blocks`` is a number, or `UNBOUNDED` for as many blocks as all requests would take if
    none shared or gave back any; None asks for the blocks of ``model`` that fit into ``memory``.
    """
    if num_blocks == UNBOUNDED:
        return int((-(-trace.total_tokens // block_size)).sum())
    if num_blocks is not None:
        if not num_blocks.isdecimal() or int(num_blocks) < 1:
            raise ReplayError(f"{num_blocks!r} is neither a number of blocks nor {UNBOUNDED!r}")
        return int(num_blocks)
    available, block = parse_bytes(memory), block_size * bytes_per_token(model)
    if available < block:
        raise ReplayError(
            f"{memory} is {available:,} bytes and one block of {model} takes {block:,}: "
            "raise --memory or lower --block-size"
        )
    return available // block
