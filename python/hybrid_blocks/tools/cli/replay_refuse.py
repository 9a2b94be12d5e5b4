"""Options of ``replay`` that say nothing beside others."""

from collections.abc import Sequence

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.geometry.deployment import MOST
from hybrid_blocks.tools.cli.given import Given
from hybrid_blocks.tools.cli.installed import need_vllm
from hybrid_blocks.tools.cli.output import (
    warn,
)
from hybrid_blocks.tools.replay import (
    ManagerName,
    ReplayError,
)
from hybrid_blocks.tools.trace import (
    SEATS,
)
from hybrid_blocks.units import parse_count

DEFAULT_MODEL = "Granite-4.0-Micro"


def check_options(
    given: Given,
    managers: Sequence[ManagerName],
    placements: Sequence[str],
    workload: str,
) -> None:
    """Refuse options that would say nothing beside the others, or that need vLLM without it.

    Raises:
        InvalidArgumentError: there is one; says beside or without which, or what to install.

    """
    if "trace" in given:
        given.refuse("workload", "seed", "seats", why="beside TRACE, whose requests are replayed")
    else:
        if workload != SEATS:
            given.refuse("seats", why="without --workload seats, the only one that has seats")
        given.refuse(
            *("trace_format", "tokenizer"),
            why="without TRACE: a generated workload has no file",
        )
    if "host" in given:
        given.refuse("num_blocks", why="beside --host: host memory takes a model's bytes")
        given.refuse("html", why="beside --host: a page shows the device alone")
    _check_memory(given)
    _check_managers(given, managers)
    _check_formats(given, placements)


def _check_memory(given: Given) -> None:
    """Refuse two sources of one memory."""
    if "num_blocks" in given:
        given.refuse(
            *("model", "memory", "tp", "kv_cache_dtype", "num_speculative_tokens", "speculative"),
            *("share", "gpu"),
            why="beside --num-blocks, which stands for a model and its memory; leave one out",
        )
    if "share" in given:
        given.refuse("memory", why="beside --share, which says how much memory there is")
        given.refuse("html", "whole", why="beside --share, which compares hits alone")


def _check_managers(given: Given, managers: Sequence[ManagerName]) -> None:
    """Refuse options of a manager that does not run."""
    if ManagerName.VLLM not in managers:
        given.refuse("retention", "gpu", why="without --manager vllm, the only one that it is for")
    if ManagerName.RUST not in managers:
        given.refuse(
            *("placement", "checkpoint_every", "signal", "host"),
            why="without --manager rust, the only one that it is for",
        )
    if "checkpoint_every" in given:
        given.refuse("placement", why="beside --checkpoint-every, which is --placement every:N")
    if ManagerName.VLLM in managers:
        need_vllm(", or leave out --manager vllm")


def _check_formats(given: Given, placements: Sequence[str]) -> None:
    """Refuse what does not show checkpoints in another format than running states."""
    if any(CheckpointPolicy(name).options["format"] != "full" for name in placements):
        given.refuse("num_blocks", why="beside a placement with a format: it has no states")


def warn_of_defaults(given: Given, memory: str) -> None:
    """Warn of a model that was not asked for."""
    if not {"model", "num_blocks"} & given.all:
        warn(
            f"without --model this replays {DEFAULT_MODEL} in {memory}; give --model and --memory "
            "of your engine"
        )


def read_retention(text: str) -> int | None:
    """Return the tokens between states that vLLM keeps, None for all."""
    if text == "dense":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ReplayError(f"--retention {text!r} is neither a number of tokens nor dense")
    return parse_count(text, "--retention", MOST, least=0)
