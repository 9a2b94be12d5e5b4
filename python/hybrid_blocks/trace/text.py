"""Text as spans of token ids: by a tokenizer, or by pieces of equal length without one."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from hybrid_blocks.inputs import read_input
from hybrid_blocks.trace.builder import Span, TraceBuilder
from hybrid_blocks.trace.errors import TraceError

BYTES_PER_TOKEN = 4
PIECE_TOKENS = 64


class Encoding(Protocol):
    """Makes spans of text; equal text has equal spans."""

    @property
    def num_reserved(self) -> int:
        """Token ids that belong to the encoding."""

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:
        """Return the spans of a text."""


class Pieces:
    """A token stands for `BYTES_PER_TOKEN` bytes of UTF-8, about what tokenizers make of English.

    Text is cut into pieces of `PIECE_TOKENS` tokens, and equal pieces have equal ids.
    """

    num_reserved = 0

    def __init__(self) -> None:
        self._known: dict[bytes, Span] = {}

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:
        """Return one span for each piece."""
        return [self._span(piece, builder) for piece in _cut(text.encode(errors="surrogatepass"))]

    def _span(self, piece: bytes, builder: TraceBuilder) -> Span:
        span = self._known.get(piece)
        if span is None:
            span = self._known[piece] = builder.fresh(-(-len(piece) // BYTES_PER_TOKEN))
        return span


class Tokenizer:
    """Tokens as a model's ``tokenizer.json`` makes them.

    Raises:
        TraceError: the package ``tokenizers`` is missing, or the file cannot be read.

    """

    def __init__(self, file: Path) -> None:
        path = file / "tokenizer.json" if file.is_dir() else file
        try:
            from tokenizers import Tokenizer as Loaded  # noqa: PLC0415 -- optional, slow
        except ImportError:
            raise TraceError("--tokenizer needs tokenizers: pip install tokenizers") from None
        try:
            self._tokenizer: Any = Loaded.from_buffer(read_input(path))
        except Exception as error:  # noqa: BLE001 -- tokenizers raises it as it is
            raise TraceError(f"--tokenizer {path}: {error}") from None
        self.num_reserved = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        self._ids = lru_cache(maxsize=4096)(self._encode)

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:  # noqa: ARG002 -- as Pieces
        """Return one span for each token."""
        return [(token, 1) for token in self._ids(text)]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def encoding_of(tokenizer: Path | None) -> Encoding:
    """Return the tokenizer of a file, or pieces without one."""
    return Pieces() if tokenizer is None else Tokenizer(tokenizer)


def _cut(text: bytes) -> Iterator[bytes]:
    size = PIECE_TOKENS * BYTES_PER_TOKEN
    ends = [*range(0, len(text), size), len(text)]
    for start, end in pairwise(ends):
        yield text[start:end]
