"""vLLM's per-request dictionaries of a group, as views of what the core holds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from hybrid_blocks._core import Block

V = TypeVar("V")


class View(Mapping[str, V], Generic[V]):
    """A mapping by request id over one group.

    ``read`` returns ``None`` for a request that the group knows nothing of.
    """

    def __init__(self, read: Callable[[str], V | None], request_ids: Callable[[], list[str]]):
        self._read = read
        self._request_ids = request_ids

    def __getitem__(self, request_id: str) -> V:
        value = self._read(request_id)
        if value is None:
            raise KeyError(request_id)
        return value

    def __iter__(self) -> Iterator[str]:
        return (request_id for request_id in self._request_ids() if request_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Tables(View[list[Block]]):
    """Block tables; that of an unknown request is empty, as in vLLM's ``defaultdict``."""

    def __getitem__(self, request_id: str) -> list[Block]:
        return self._read(request_id) or []

    def __contains__(self, request_id: object) -> bool:
        return isinstance(request_id, str) and self._read(request_id) is not None
