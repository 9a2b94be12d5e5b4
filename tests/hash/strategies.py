"""Hypothesis strategies: what a block may be hashed from."""

from typing import Any, get_args

from hybrid_blocks.hashing import Algorithm
from hypothesis import strategies as st

EDGES = [
    *[0, 1, 23, 24, 127, 128, 255, 256, 32767, 32768, 65535, 65536],
    *[2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**39, 2**40, 2**55, 2**63 - 1],
]

algorithms = st.sampled_from(get_args(Algorithm))
token_ids = st.one_of(
    st.sampled_from([*EDGES, *(-edge for edge in EDGES), *(-edge - 1 for edge in EDGES)]),
    st.integers(0, 200_000),
    st.integers(-(2**63), 2**63 - 1),
)
blocks = st.lists(token_ids, max_size=40)

# A fixed alphabet with 1 to 4 bytes a character; all of Unicode takes seconds to set up.
texts = st.text(alphabet="\0aZ~\x7f\x80éÿĀ漢\uffff😀", max_size=20)

plain_atoms = st.one_of(
    *(st.none(), st.booleans(), token_ids, texts, st.binary(max_size=20)),
    *(st.floats(), st.floats(width=32), st.floats(width=16)),
    st.sampled_from(["lora", "mm", "cache_salt", "x" * 255, "é" * 128, b"y" * 255, b"z" * 256]),
)


@st.composite
def shared_tuples(draw: st.DrawFn, atoms: st.SearchStrategy[Any] = plain_atoms) -> tuple[Any, ...]:
    """Nested tuples in which one object may stand in several places."""
    objects: list[Any] = draw(st.lists(atoms, min_size=1, max_size=6))

    for size in draw(st.lists(st.integers(0, 5), min_size=1, max_size=5)):
        last = st.integers(0, len(objects) - 1)
        objects += [tuple(objects[draw(last)] for _ in range(size))]
    whole: tuple[Any, ...] = objects[-1]
    return whole


exotic_atoms = st.one_of(
    plain_atoms,
    st.integers(2**63, 2**70),
    st.lists(st.integers(0, 5), max_size=3),
    st.dictionaries(texts, token_ids, max_size=3),
)
