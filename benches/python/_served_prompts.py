"""Tokens of a short prompt that a look-up finds when it returns, for each length."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from _record import Row
from _served_model import Case, Side, serving
from _served_rows import GIB, MODELS, Cases, Chosen, deployment
from hybrid_blocks.model import load_model

SHORT = range(12, 501)
"""Prompts that return, in tokens."""
FINEST = 16
"""vLLM's finest ``--prefix-match-unit`` for these models."""


def cases(chosen: Chosen) -> Cases:
    """Yield both sides of each model."""
    for name in chosen.models or MODELS:
        yield from _of_model(name)


def _of_model(name: str) -> Cases:
    case = Case(load_model(name), 24 * GIB, deployment(), num_requests=16, inside=True)
    for side in Side:
        yield {"model": name, "side": side}, partial(measure, side, case)
    finest = replace(case, match_unit=FINEST)
    about = {"model": name, "side": Side.STOCK, "unit": FINEST}
    yield about, partial(measure, Side.STOCK, finest)


def measure(side: Side, case: Case) -> Row:
    """Serve each prompt twice, alone, and count what of it was found."""
    with serving(side, case) as served:
        found = []
        for length in SHORT:
            prompt = list(range(length * 1000, length * 1000 + length))
            for turn in ("first", "again"):
                served.add(f"{length} {turn}", prompt, [7])
                while served.scheduler.requests:
                    served.step()
            found.append(served.num_hit_tokens[f"{length} again"])
        block = served.scheduler.hash_block_size
    return {
        "hash_block_tokens": block,
        "lengths": [SHORT.start, SHORT.stop - 1],
        "at_every_block": sum(
            hit == (length - 1) // block * block for hit, length in zip(found, SHORT, strict=True)
        ),
        "hits": sum(hit > 0 for hit in found),
        "hit_rate": sum(found) / sum(SHORT),
        "prompts": len(found),
    }


def check(rows: list[Row]) -> Iterator[str]:
    """Name the models in which a prompt that returns is not found up to its last whole block."""
    for row in rows:
        if row["side"] == Side.NATURAL and row["at_every_block"] < row["prompts"]:
            missed = row["prompts"] - row["at_every_block"]
            yield f"{row['model']}: {missed} of {row['prompts']} hits end before the last block"
