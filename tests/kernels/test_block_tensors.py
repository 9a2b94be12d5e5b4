"""Block tensors are described by strides, and wrong ones are refused."""

import pytest
import torch
from hybrid_blocks.kernels import BlockTensors
from hypothesis import given
from kernel_cases import DEVICE, FEW, OddGroup, odd_groups, raw


@FEW
@given(odd_groups())
def test_segments_hold_every_byte_of_a_block_once(group: OddGroup) -> None:
    for block in range(group.num_blocks):
        segments = torch.cat([view[block] for view in group.blocks.byte_views()])
        elements = torch.cat([raw(tensor[block]) for tensor in group.tensors])
        assert torch.equal(segments.sort().values, elements.sort().values)
    sizes = [tensor[0].numel() * tensor.element_size() for tensor in group.tensors]
    assert group.blocks.record_bytes == sum(sizes)


@FEW
@given(odd_groups())
def test_units_cover_each_segment_in_order(group: OddGroup) -> None:
    tables = group.blocks.tables(512)
    units = tables.units.tolist()
    assert units == sorted(units)
    for index, size in enumerate(group.blocks.segments[:, 2].tolist()):
        assert [u for s, u in units if s == index] == list(range(-(-size // 512)))


def test_a_contiguous_layer_is_one_segment_and_its_address_is_the_tensors() -> None:
    state = torch.zeros(5, 4, 8, 16, device=DEVICE)
    group = BlockTensors([state])
    assert group.segments.tolist() == [[state.data_ptr(), 2048, 2048, 0]]
    assert (group.record_bytes, group.alignment) == (2048, 16)


def test_key_and_value_planes_are_two_segments() -> None:
    cache = torch.zeros(2, 5, 16, 4, 8, device=DEVICE, dtype=torch.bfloat16)
    group = BlockTensors([cache.transpose(0, 1)])
    page = 16 * 4 * 8 * 2
    assert group.segments[:, 0].tolist() == [cache.data_ptr(), cache.data_ptr() + 5 * page]
    assert group.segments[:, 1:3].tolist() == [[page, page]] * 2
    assert group.reach == 1


def test_segments_of_a_record_lie_one_after_another() -> None:
    group = BlockTensors([torch.zeros(3, n, dtype=torch.uint8, device=DEVICE) for n in (5, 17, 16)])
    assert group.segments[:, 3].tolist() == [0, 5, 22]
    assert (group.record_bytes, group.alignment) == (38, 1)


def test_views_in_granules_say_how_far_ids_must_be_apart() -> None:
    arena = torch.zeros(64 * 16, dtype=torch.uint8, device=DEVICE)
    assert BlockTensors([arena.as_strided((12, 64 * 5), (64, 1))]).reach == 5
    assert BlockTensors([arena.as_strided((12, 64 * 4 + 1), (64, 1))]).reach == 5
    layers = [arena.as_strided((12, 64), (64, 1), 64 * layer) for layer in range(4)]
    assert BlockTensors(layers).reach == 4


def test_bytes_that_tensors_share_count_once_where_they_may() -> None:
    memory = torch.zeros(4, 32, dtype=torch.uint8, device=DEVICE)
    tensors = [memory[:, 8:20], memory[:, 24:], memory[:, 2:10], memory[:, 12:14]]
    group = BlockTensors(tensors, may_share=True)
    base = memory.data_ptr()
    assert group.segments[:, :3].tolist() == [[base + 2, 32, 18], [base + 24, 32, 8]]
    assert [view.shape for view in group.byte_views()] == [(4, 18), (4, 8)]
    with pytest.raises(ValueError, match="share bytes"):
        BlockTensors(tensors)


TWICE = torch.zeros(3, 2)
MEMORY = torch.zeros(24)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "at least one tensor"),
        ([torch.zeros(())], "tensor 0 has no dimension"),
        ([torch.zeros(3, 2), torch.zeros(4, 2)], "tensor 1 has 4 blocks, tensor 0 has 3"),
        ([torch.zeros(3, 0)], "tensor 0 is empty"),
        ([torch.zeros(1, 2).expand(3, 2)], "block stride 0"),
        ([torch.zeros(3, 1).expand(3, 2)], "overlaps itself inside a block"),
        ([TWICE, TWICE], "segments 0 and 1 of a block share bytes"),
        (
            [MEMORY.as_strided((4, 2), (2, 1)), MEMORY.as_strided((4, 2), (3, 1), 6)],
            "segments 0 and 1 lie in the same memory with block strides of 8 and 12 bytes",
        ),
        ([torch.zeros(2, (1 << 17) + 2)[:, ::2]], "scattered: a block has 65537 runs of 4 bytes"),
    ],
)
def test_tensors_that_are_no_group_are_refused(tensors: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockTensors(tensors)
