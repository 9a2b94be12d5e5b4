"""Groups of layers as the tables of a plan have them: alike ones in one row."""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from hybrid_blocks.plan.report.plan_report import GroupReport, PlanReport


def rows(plan: PlanReport) -> Iterator[tuple[str, GroupReport]]:
    """Yield the name of each row and its group: neighbours that differ in their names alone."""
    unnamed = (msgspec.structs.replace(group, name="") for group in plan.groups)
    for group, members in groupby(unnamed):
        count = len(list(members))
        window = f" {group.window:,}" if group.window else ""
        yield f"{group.kind}{window}{f' x {count}' if count > 1 else ''}", group


def formula(plan: PlanReport, group: GroupReport, length: int) -> str:
    """Return the figures of a row, each from its numbers; ``length`` is the maximum."""
    parts = [
        f"a block is {group.page_bytes:,} bytes of {group.layers} layers = "
        f"{group.page_bytes // group.layers:,} bytes a layer"
    ]
    if group.slots_per_request is None:
        parts[0] += f" for {group.block_tokens:,} tokens"
    if (padding := group.block_bytes - group.page_bytes) > 0:
        empty = f" and {group.padding_layers} empty layers" if group.padding_layers else ""
        parts.append(f"its stride {group.block_bytes:,}, with {padding:,} of padding{empty}")
    if group.slots_per_request is not None:
        parts.append(f"a request holds {group.slots_per_request}: the state and one for each draft")
    else:
        parts.append(f"a request of {length:,} tokens holds {group.blocks_per_request:,} blocks")
    if group.blocks_per_slab and plan.slab_bytes and plan.num_slabs:
        parts.append(
            f"a slab holds floor({plan.slab_bytes:,} / {group.block_bytes:,}) = "
            f"{group.blocks_per_slab:,}"
        )
        if group.num_slots:
            parts.append(
                f"{plan.num_slabs:,} slabs x {group.blocks_per_slab:,} blocks x "
                f"{group.block_tokens:,} tokens = {group.num_slots:,} token slots"
            )
    elif group.num_slots:
        parts.append(
            f"{plan.num_blocks:,} blocks x {group.block_tokens:,} tokens = "
            f"{group.num_slots:,} token slots"
        )
    return "; ".join(parts)
