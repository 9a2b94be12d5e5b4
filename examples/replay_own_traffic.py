"""Replay your own traffic: how many of its prompt tokens would each size of memory find?

    python examples/replay_own_traffic.py traffic.csv Granite-4.0-Micro 1GiB 4GiB 16GiB

A gateway's log is enough. The file has one line a request, in the order of arrival: seconds,
session, tokens of the user's new message, tokens of the answer. A turn's prompt is all that its
session said before. An engine can also record its traffic itself, block by block: set
`HYBRID_BLOCKS_RECORD=traffic.jsonl.gz` and give that file to `hybrid-blocks replay`.
"""

import csv
import sys
from pathlib import Path

from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, Result, model_cache, replay
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.builder import Span, TraceBuilder

SYSTEM_PROMPT_TOKENS = 600  # what every session begins with


def read(path: Path) -> Trace:
    """Make a trace of a log."""
    builder = TraceBuilder(path.name)
    system = builder.fresh(SYSTEM_PROMPT_TOKENS)
    sessions: dict[str, tuple[int, list[Span]]] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            number, spans = sessions.setdefault(line["session"], (len(sessions), [system]))
            message, answer = int(line["message_tokens"]), int(line["answer_tokens"])
            prompt = sum(count for _, count in spans) + message
            spans += [builder.fresh(message), builder.fresh(answer)]
            builder.add(
                spans,
                arrival=float(line["seconds"]),
                prompt_tokens=prompt,
                output_tokens=answer,
                session=number,
            )
    return builder.build()


def results(path: Path, model: str, memories: list[str]) -> dict[str, Result]:
    """Replay a log in each size of memory."""
    trace = read(path)
    found = {}
    for memory in memories:
        cache = model_cache(model, memory, Deployment(in_flight_batches=1))
        found[memory], _ = replay(
            trace, manager_name=ManagerName.RUST, cache=cache, config=EngineConfig(max_num_seqs=64)
        )
    return found


def main(path: str, model: str, *memories: str) -> None:
    """Print a line for each size of memory."""
    for memory, result in results(Path(path), model, list(memories)).items():
        print(
            f"{memory}: {result.hit_rate:.1%} of {result.prompt_tokens:,} prompt tokens found, "
            f"{result.peak_running} requests at once, {result.preemptions} preemptions"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
