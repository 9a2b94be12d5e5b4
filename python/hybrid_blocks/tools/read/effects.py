"""Which of vLLM's options change a plan, which cannot be planned, and which change nothing in it.

The table is ``effects.toml``. Every recorded option stands in one of the three; a new one that
stands in none is refused.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from hybrid_blocks.model.layer import ChunkedAttention, LatentAttention

_TABLE: Final = tomllib.loads((files(__package__) / "effects.toml").read_text())

MAPPED: Final = frozenset(_TABLE["mapped"].split())
"""Options that a deployment is made of."""

REFUSED: Final[Mapping[str, tuple[list[Any], str]]] = _TABLE["refused"]
"""Values that change nothing, as no value does, and why another value is refused."""

SILENT: Final = frozenset(" ".join(_TABLE["silent"].values()).split())
"""Options that change nothing in a plan of a given memory."""

VARIABLES: Mapping[str, tuple[tuple[str, ...], str | None, str]] = MappingProxyType(
    {
        "VLLM_KV_CACHE_LAYOUT": (
            ("NHD", "HND", "LBNHC", "LBHNC"),
            None,
            "a layout with blocks or heads outside of the layers cannot be planned",
        ),
        "VLLM_SSM_CONV_STATE_LAYOUT": (("SD", "DS"), None, "vLLM takes SD and DS"),
        "VLLM_MLA_DISABLE": (
            ("0",),
            LatentAttention.kind,
            "latents kept as plain attention cannot be planned",
        ),
        "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": (
            ("1",),
            ChunkedAttention.kind,
            "chunked attention kept whole cannot be planned",
        ),
    }
)
"""Variables with the values that change nothing, the kind of layers that others matter to, and why.

A kind None stands for all layers.
"""
