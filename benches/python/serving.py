"""Figures of level ``natural`` in vLLM's own scheduler, beside stock vLLM at equal bytes.

    python benches/python/serving.py running prompts copies hits first-token chunks --data DATA

vLLM's functions plan the memory of a model, and vLLM's scheduler serves requests with prescribed
outputs, without weights or a GPU. ``--data`` names the folder of the traces, ``--record`` that of
the record. ``--models``, ``--loads``, ``--sides`` and ``--cells`` choose a part of the cases. A
recorded row runs again only if the code under it changed. The last lines name figures that miss
their target, and models of ``--models`` that level ``natural`` refuses. The exit status is then 1.
All but times are the same in every run.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import _device  # noqa: F401
import _served_chunks
import _served_copies
import _served_first_token
import _served_hits
import _served_prompts
import _served_running
from _record import Record, Row, code_of, stock_code
from _served_model import OtherLevelError, Side
from _served_rows import Cases, Chosen, deployment
from hybrid_blocks.model import load_model
from public_data import DATA

FIGURES = {
    "running": _served_running,
    "prompts": _served_prompts,
    "copies": _served_copies,
    "hits": _served_hits,
    "first-token": _served_first_token,
    "chunks": _served_chunks,
}


def code(side: Side, model: str) -> str:
    """Name the code that a side's rows depend on."""
    if side is Side.STOCK:
        return stock_code(load_model(model), deployment())
    return code_of("vllm")


def rows(figure: str, found: Cases, record: Record, refused: list[str]) -> Iterator[Row]:
    """Yield the rows of a figure, from the record where they are there.

    Models that do not reach their side's level are left out, and named in ``refused``.
    """
    for about, run in found:
        key = {"figure": figure, **about, "code": code(about["side"], about["model"])}
        digest = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:24]
        if digest not in record.rows:
            try:
                row = run()
            except OtherLevelError as error:
                refused.append(f"{about['model']}: {error}")
                sys.stdout.write(f"left out: {refused[-1]}\n")
                continue
            record.add({**key, **row, "digest": digest})
        yield record.rows[digest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("figures", nargs="+", choices=FIGURES)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--record", type=Path, default=Path("benches/record"))
    parser.add_argument("--models", nargs="+", default=[], help="instead of the figure's own")
    parser.add_argument("--loads", nargs="+", default=[], help="of hits, first-token and chunks")
    parser.add_argument("--sides", nargs="+", default=list(Side), help="of first-token")
    parser.add_argument("--cells", type=int, help="of each model and load of first-token")
    arguments = parser.parse_args()
    record = Record(arguments.record / "vllm-natural.jsonl")
    chosen = Chosen(
        arguments.data,
        tuple(arguments.models),
        tuple(arguments.loads),
        tuple(map(Side, arguments.sides)),
        arguments.cells,
    )
    missed = []
    for name in arguments.figures:
        figure, found = FIGURES[name], []
        refused: list[str] = []
        cases = figure.cases(chosen)
        for row in rows(name, cases, record, refused):
            sys.stdout.write(_line(row) + "\n")
            sys.stdout.flush()
            found.append(row)
        if figure is _served_first_token:
            sys.stdout.writelines(f"{line}\n" for line in _served_first_token.tables(found))
        missed += [f"{name}: {line}" for line in figure.check(found)]
        # One of the figure's own models may be refused on this machine, but not all of them.
        if arguments.models or {row["side"] for row in found} != set(Side):
            missed += [f"{name}: left out: {line}" for line in refused]
    sys.stdout.writelines(f"MISSED {line}\n" for line in missed)
    sys.exit(bool(missed))


def _line(row: Row) -> str:
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in row.items()
        if key not in {"digest", "code"}
    )


if __name__ == "__main__":
    main()
