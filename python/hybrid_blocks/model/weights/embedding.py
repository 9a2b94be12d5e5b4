"""Sizes of embeddings that a ``config.json`` may leave out, because its class has them.

A test compares ``embedding.json`` with the classes of transformers.
"""

from functools import cache
from importlib.resources import files

import msgspec

from hybrid_blocks.model.config import Config


class Embedding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a vocabulary, and whether the output shares the matrix of the input."""

    vocab_size: int | None = None
    tie_word_embeddings: bool = False


def embedding_of(config: Config, model_type: str) -> Embedding:
    """Return the embeddings of a file; fields that it leaves out are those of its class."""
    default = _recorded().get(model_type, Embedding())
    return Embedding(
        vocab_size=config.optional("vocab_size") or default.vocab_size,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=default.tie_word_embeddings),
    )


@cache
def _recorded() -> dict[str, Embedding]:
    record = files("hybrid_blocks.model.weights").joinpath("embedding.json").read_bytes()
    return msgspec.json.decode(record, type=dict[str, Embedding])
