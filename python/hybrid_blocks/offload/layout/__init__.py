"""The groups of a model as they lie in host memory."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_blocks._core.offload import ChunkCodec
from hybrid_blocks.offload.layout.parts import Part, Structure, opaque

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig


@dataclass(frozen=True, kw_only=True)
class Group:
    """One KV cache group.

    ``number`` is vLLM's number of the group, ``tokens`` the tokens of a chunk, ``rank_bytes`` the
    bytes of a chunk that one rank holds. ``window`` counts the chunks that the next token needs;
    ``None`` stands for all of them. A drafter reads a group that ``is_drafter``: its chunk is found
    only if the next one is there too. ``parts`` say what these bytes are, layer by layer, and
    ``depths`` where the layers stand; without them nothing is known.
    """

    number: int
    tokens: int
    rank_bytes: int
    window: int | None = None
    is_drafter: bool = False
    parts: tuple[Part, ...] = ()
    depths: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Groups:
    """All groups that are stored, in the order in which vLLM's connector names them.

    In host memory a chunk holds the shares of all ranks, rank 0 first. Below it recurrent states of
    32-bit numbers are kept in ``state_format``, if it is given.
    """

    all: tuple[Group, ...]
    num_ranks: int
    tokens_per_hash: int
    state_format: str | None = None

    def parts_of(self, group: Group) -> list[Part]:
        """The parts of a chunk; one opaque part where a group names none."""
        return list(group.parts) or [opaque(group.rank_bytes, self.num_ranks)]

    def codec(self, group: Group) -> ChunkCodec:
        """The stored form of a chunk."""
        parts = self.parts_of(group)
        return ChunkCodec(parts, tp_size=self.num_ranks, state_format=self.state_format)

    def chunk_bytes(self, group: Group) -> int:
        """Bytes of a chunk of all ranks in host memory."""
        return group.rank_bytes * self.num_ranks

    def by_number(self) -> list[Group | None]:
        """Groups by vLLM's number; ``None`` where a group is not stored."""
        numbered: list[Group | None] = [None] * (max(it.number for it in self.all) + 1)
        for group in self.all:
            numbered[group.number] = group
        return numbered


def group_number(key: bytes) -> int:
    """Return vLLM's number of the group that an offload key belongs to: its last four bytes."""
    return int.from_bytes(key[-4:], "big")


def groups_of(
    config: "OffloadingConfig",
    rank_bytes: Sequence[int],
    structures: Sequence[Structure] = (),
    state_format: str | None = None,
    drafters: Collection[int] = (),
) -> Groups:
    """Return the groups of vLLM's configuration, with a rank's bytes of a chunk of each.

    ``drafters`` are the numbers of groups whose look-ups need one chunk more than they load.
    """
    known = list(structures) or [Structure([], [], [])] * len(rank_bytes)
    return Groups(
        all=tuple(
            Group(
                number=group.group_id,
                tokens=group.tokens_per_block,
                rank_bytes=num_bytes,
                window=group.sliding_window_size_in_chunks,
                is_drafter=group.group_id in drafters,
                parts=tuple(structure.parts()),
                depths=tuple(map(tuple, structure.depths)),
            )
            for group, num_bytes, structure in zip(config.groups, rank_bytes, known, strict=True)
        ),
        num_ranks=config.parallel.world_size,
        tokens_per_hash=config.cache.tokens_per_hash,
        state_format=state_format,
    )


def layout_versions(groups: Groups, identity: Mapping[str, Any]) -> list[bytes]:
    """16 bytes for each of vLLM's group numbers: a digest of all that the bytes of a chunk mean.

    Chunks below host memory are read only by engines that have the same versions. The number of
    ranks has no part in it, but where bytes of unknown structure have a head for each.
    """
    return [
        hashlib.sha256(
            json.dumps(
                {"format": 2, "identity": dict(identity), "group": _meaning(groups, group)},
                sort_keys=True,
            ).encode()
        ).digest()[:16]
        for group in groups.by_number()
    ]


def _meaning(groups: Groups, group: Group | None) -> dict[str, Any] | None:
    if group is None:
        return None
    return {
        "number": group.number,
        "tokens": group.tokens,
        "window": group.window,
        "parts": groups.parts_of(group),
        "depths": group.depths,
        "state_format": groups.state_format if groups.codec(group).converts_states else None,
    }
