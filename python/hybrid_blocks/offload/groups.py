"""The groups of a model as they lie in host memory."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig


@dataclass(frozen=True, kw_only=True)
class Group:
    """One KV cache group.

    ``number`` is vLLM's number of the group, ``tokens`` the tokens of a chunk, ``rank_bytes`` the
    bytes of a chunk that one rank holds. ``window`` counts the chunks that the next token needs;
    ``None`` stands for all of them.
    """

    number: int
    tokens: int
    rank_bytes: int
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Groups:
    """All groups that are stored, in the order in which vLLM's connector names them.

    A chunk holds the shares of all ranks, rank 0 first.
    """

    all: tuple[Group, ...]
    num_ranks: int
    tokens_per_hash: int

    def chunk_bytes(self, group: Group) -> int:
        """Bytes of a chunk of all ranks."""
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


def groups_of(config: "OffloadingConfig", rank_bytes: Sequence[int]) -> Groups:
    """Return the groups of vLLM's configuration, with a rank's bytes of a chunk of each."""
    return Groups(
        all=tuple(
            Group(
                number=group.group_id,
                tokens=group.tokens_per_block,
                rank_bytes=num_bytes,
                window=group.sliding_window_size_in_chunks,
            )
            for group, num_bytes in zip(config.groups, rank_bytes, strict=True)
        ),
        num_ranks=config.parallel.world_size,
        tokens_per_hash=config.cache.tokens_per_hash,
    )


def layout_versions(groups: Groups, identity: Mapping[str, Any]) -> list[bytes]:
    """16 bytes for each of vLLM's group numbers: a digest of all that the bytes of a chunk mean.

    Chunks on disk are read only by engines that have the same versions.
    """
    common = {"format": 1, "num_ranks": groups.num_ranks, "identity": dict(identity)}
    return [
        hashlib.sha256(
            json.dumps(
                common | {"group": asdict(group) if group else None}, sort_keys=True
            ).encode()
        ).digest()[:16]
        for group in groups.by_number()
    ]
