"""How far estimates of free memory are from logged ones: ``python tests/plan/estimate_error.py``.

Most logs do not tell ``--gpu-memory-utilization``; these rows are estimated with its default.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.memory import UTILIZATION, Estimate, estimate, parse_cards
from hybrid_blocks.tools.read.command import find_model

GIB: Final = 2**30
ROWS: Final = Path(__file__).with_name("logged_free_memory.json")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that one engine logged as free on each card."""

    model: str
    gpu: str
    gib: float
    batched_tokens: int = 8192
    utilization: float | None = None


def estimates() -> Iterator[tuple[Row, Estimate]]:
    """Rows, each with its estimate."""
    for row in msgspec.json.decode(ROWS.read_bytes(), type=list[Row]):
        model = find_model(row.model)
        cards = parse_cards(row.gpu)
        deployment = Deployment(tp=cards.count or 1, max_num_batched_tokens=row.batched_tokens)
        yield row, estimate(model, deployment, cards, row.utilization or UTILIZATION)


def errors() -> dict[str, list[float]]:
    """Errors as shares of a card, of models in their own format and of quantized ones."""
    found: dict[str, list[float]] = {"in 16 bits": [], "quantized": []}
    for row, one in estimates():
        error = (one.free / GIB - row.gib) / (one.total / GIB)
        found["quantized" if one.is_quantized else "in 16 bits"].append(error)
    return found


def main() -> None:
    """Print a line for each row, and the error of both sorts."""
    for row, one in estimates():
        free = one.free / GIB
        known = "" if row.utilization else " (default)"
        print(
            f"{row.model:24} {row.gpu:13} {one.utilization:g}{known:10} logged {row.gib:6.2f}, "
            f"estimated {free:6.2f} GiB: {free - row.gib:+6.2f} GiB"
        )
    for sort, shares in errors().items():
        sizes = [abs(share) for share in shares]
        print(f"{sort}: median {median(sizes):.1%} of the card, largest {max(sizes):.1%}")


if __name__ == "__main__":
    main()
