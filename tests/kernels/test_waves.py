from hybrid_blocks.kernels.waves import ordered_waves
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import MANY, int32s

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14)


@MANY
@given(pairs)
def test_waves_end_in_the_state_that_list_order_gives(moves: list[tuple[int, int]]) -> None:
    expected = list(range(7))
    for source, target in moves:
        expected[target] = expected[source]
    held = list(range(7))
    waves = ordered_waves(int32s(*(s for s, _ in moves)), int32s(*(t for _, t in moves)))
    for src, dst in waves:
        before = list(held)
        for source, target in zip(src.tolist(), dst.tolist(), strict=True):
            held[target] = before[source]
    assert held == expected


@MANY
@given(pairs)
def test_no_wave_reads_or_rewrites_what_it_writes(moves: list[tuple[int, int]]) -> None:
    for src, dst in ordered_waves(int32s(*(s for s, _ in moves)), int32s(*(t for _, t in moves))):
        assert len(set(dst.tolist())) == len(dst) > 0
        assert not set(src.tolist()) & set(dst.tolist())


def test_a_chain_of_reads_needs_one_wave() -> None:
    ((src, dst),) = ordered_waves(int32s(0, 1, 2), int32s(1, 2, 3))
    assert src.tolist() == [0, 0, 0]
    assert dst.tolist() == [1, 2, 3]


def test_a_write_to_a_block_still_to_be_read_starts_a_second_wave() -> None:
    waves = ordered_waves(int32s(0, 2), int32s(1, 0))
    assert [(s.tolist(), d.tolist()) for s, d in waves] == [([0], [1]), ([2], [0])]


def test_copies_of_a_block_onto_itself_vanish() -> None:
    assert ordered_waves(int32s(3, 4), int32s(3, 4)) == []
