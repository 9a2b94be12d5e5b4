"""vLLM's per-request dictionaries of a group, as views of what the core holds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from hybrid_blocks._core.vllm import Block

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


class Table(Sequence[Block]):
    """A request's blocks as they are whenever it is looked at, like the list that vLLM extends.

    ``read`` returns ``None`` once the request is freed; its blocks are then what they were when
    last looked at.
    """

    def __init__(self, read: Callable[[], list[Block] | None]) -> None:
        self._read = read
        self._seen = read() or []

    def _blocks(self) -> list[Block]:
        self._seen = self._read() or self._seen
        return self._seen

    def __getitem__(self, index: Any) -> Any:
        return self._blocks()[index]

    def __len__(self) -> int:
        return len(self._blocks())

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks())

    def __eq__(self, other: object) -> bool:
        return self._blocks() == (other._blocks() if isinstance(other, Table) else other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Block]) -> list[Block]:
        return [*self, *other]

    def __repr__(self) -> str:
        return repr(self._blocks())


class Tables(View[Any]):
    """Block tables; that of an unknown request is empty, as in vLLM's ``defaultdict``."""

    def __getitem__(self, request_id: str) -> Table:
        return Table(partial(self._read, request_id))

    def __contains__(self, request_id: object) -> bool:
        return isinstance(request_id, str) and self._read(request_id) is not None
