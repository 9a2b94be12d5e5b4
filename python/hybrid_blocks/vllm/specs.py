"""One table maps vLLM's specs of cached layers to the core's kinds, and back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.core.single_type_kv_cache_manager import (
    ChunkedLocalAttentionManager,
    CircularBufferManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from hybrid_blocks._core import GroupKind

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """A class of specs.

    Attributes:
        name: of the kind, as the planner calls it.
        spec: vLLM's class.
        manager: vLLM's manager of such groups.
        numbers: of a spec, as the core's kind takes them.
        keywords: of a spec with a window.
        kind: the core's name, where it is another one.
        at_natural: whether level ``natural`` serves it.
    """

    name: str
    spec: type[Any]
    manager: type[SingleTypeKVCacheManager]
    numbers: Callable[[Any], dict[str, int]] = _nothing
    keywords: Callable[[int], dict[str, Any]] = _nothing
    kind: str | None = None
    at_natural: bool = True


def _state(spec: MambaSpec) -> dict[str, int]:
    numbers = {"num_speculative": spec.num_speculative_blocks}
    if spec.mamba_cache_mode == "align":
        numbers["checkpoint_alignment"] = spec.prefill_checkpoint_alignment or 0
        numbers["has_checkpoint_blocks"] = int(spec.num_prefill_checkpoint_blocks > 0)
    return numbers


ROWS: Final = (
    Row(
        "sliding_window",
        SlidingWindowSpec,
        SlidingWindowManager,
        lambda spec: {"window": spec.sliding_window, "extra_retained": spec.extra_retained_tokens},
        lambda window: {"sliding_window": window, "dcp_sharded": False},
    ),
    Row(
        "chunked",
        ChunkedLocalAttentionSpec,
        ChunkedLocalAttentionManager,
        lambda spec: {"window": spec.attention_chunk_size},
        lambda window: {"attention_chunk_size": window},
    ),
    Row("cross", CrossAttentionSpec, CrossAttentionManager, at_natural=False),
    Row(
        "ring",
        CircularBufferSpec,
        CircularBufferManager,
        keywords=lambda _: {"head_size_v": 0},
        at_natural=False,
    ),
    Row("state", MambaSpec, MambaManager, _state),
    Row("mla", MLAAttentionSpec, FullAttentionManager, kind="full"),
    Row("full", FullAttentionSpec, FullAttentionManager),
)
"""All kinds; a class stands before those that it derives from."""

MANAGERS: Final = tuple(row.manager for row in ROWS)
"""vLLM's managers whose decisions the core makes."""

AT_NATURAL: Final = tuple(row.spec for row in ROWS if row.at_natural)
"""Specs that level ``natural`` serves; classes derived from them are not."""


def is_state(spec: Any) -> "TypeIs[MambaSpec]":
    """Return whether a spec is of recurrent states."""
    return isinstance(spec, MambaSpec)


def window_of(spec: Any) -> int | None:
    """Return the sliding window of a spec, which one of several kinds of layers may also have."""
    window: int | None = getattr(spec, "sliding_window", None)
    return window


def row_of(spec: Any) -> Row:
    """Return the row of a spec; attention that is not known holds every token."""
    return next((row for row in ROWS if isinstance(spec, row.spec)), ROWS[-1])


def kind_of(spec: Any, max_encoder_tokens: int = 0) -> GroupKind:
    """Return the core's kind of a spec; an encoder's tokens are no part of one."""
    row = row_of(spec)
    if row.spec is CrossAttentionSpec:
        return GroupKind(row.name, encoder_tokens=max_encoder_tokens)
    name = row.kind or row.name
    if is_state(spec):
        name = "mamba_aligned" if spec.mamba_cache_mode == "align" else "mamba_in_place"
    return GroupKind(name, **row.numbers(spec))


def make(name: str, window: int | None = None, **common: Any) -> KVCacheSpec | None:
    """Return the attention spec of a planner's kind, ``None`` for a kind that vLLM has not."""
    row = next((row for row in ROWS if row.name == name and row.spec is not MambaSpec), None)
    if row is None:
        return None
    made: KVCacheSpec = row.spec(**row.keywords(window or 0), **common)
    return made
