"""Options of commands: which were given, values that none takes, and ``--speculative``."""

import math
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
import typer

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.geometry.deployment import MOST
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.doctor.features import Features, check_model, parse_speculative
from hybrid_blocks.tools.read.speculative import WITHOUT_LAYERS


class Given:
    """Which parameters of a command come from its command line."""

    def __init__(self, context: typer.Context) -> None:
        self._context = context
        self._written: dict[str, str] = {}
        for parameter in context.command.params:
            name = str(parameter.name)
            options = parameter.opts
            if context.params.get(name) is False and parameter.secondary_opts:
                options = parameter.secondary_opts
            is_option = parameter.param_type_name == "option"
            self._written[name] = options[0] if is_option else name.upper()

    def __contains__(self, name: str) -> bool:
        source = self._context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    @property
    def all(self) -> set[str]:
        """Names of all parameters that were given."""
        return {name for name in self._written if name in self}

    def names(self, *names: str) -> str:
        """Return which of ``names`` were given, as the user wrote them; "" if none was."""
        return ", ".join(self._written[name] for name in names if name in self)

    def refuse(self, *names: str, why: str) -> None:
        """Refuse ``names`` where they would be ignored; ``why`` continues "--option "."""
        if given := self.names(*names):
            raise InvalidArgumentError(f"{given} {why}")

    def all_but(self, *names: str) -> tuple[str, ...]:
        """Return every parameter of the command but ``names``."""
        return tuple(name for name in self._written if name not in names and name != "help")


T = TypeVar("T")

MOST_RUNNING = 2**16
"""Requests that a command runs at a time, at most."""


def finite(param: typer.CallbackParam, value: float | None) -> float | None:
    """Refuse infinity, and what is no number and so within any range."""
    if value is not None and not math.isfinite(value):
        raise InvalidArgumentError(f"{param.opts[-1]} {value}: a finite number is needed")
    return value


def each_once(option: str, values: Sequence[T]) -> Sequence[T]:
    """Refuse what is named twice: its second figures would be those of the first."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InvalidArgumentError(f"{option} names {value} twice")
    return values


Speculative = Annotated[
    str | None, typer.Option("--speculative", help="Method and draft tokens of a step: mtp:2.")
]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", help="auto, bf16, fp8, nvfp4.")]
MambaSsmDtype = Annotated[
    str, typer.Option("--mamba-ssm-dtype", "--mamba-ssm-cache-dtype", help="Recurrent state.")
]
TensorParallel = Annotated[
    int, typer.Option("--tp", "--tensor-parallel-size", min=1, help="Tensor parallel size.")
]
MaxNumSeqs = Annotated[
    int, typer.Option("--max-num-seqs", min=1, max=MOST_RUNNING, help="Most running requests.")
]
MaxNumBatchedTokens = Annotated[
    int,
    typer.Option(
        "--max-num-batched-tokens", min=1, max=MOST, help="Most tokens computed in one step."
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        min=1,
        max=MOST,
        help="Tokens of an attention block, and between checkpoints.",
    ),
]
Retention = Annotated[
    str,
    typer.Option(
        *("--retention", "--prefix-cache-retention-interval"),
        metavar="N|dense|best",
        help="dense keeps all, best shows which finds most.",
    ),
]
Watermark = Annotated[
    float, typer.Option("--watermark", help="Share of the pool that an admission leaves free.")
]
Clock = Annotated[
    str | None,
    typer.Option(
        "--clock",
        metavar="CARD|RECORD",
        help="Card whose time passes, H100-80GB, or recorded traffic.",
    ),
]


def drafted(model: Model, text: str | None) -> tuple[Model, int]:
    """Return the model as it drafts by ``--speculative``, and the draft tokens of a step."""
    if text is None:
        return model, 0
    drafts = parse_speculative(text)
    if drafts.method not in {"mtp", *WITHOUT_LAYERS}:
        raise PlanError(
            f"--speculative {text}: the layers of its drafter cannot be planned; mtp, ngram and "
            "suffix can"
        )
    check_model(model, Features(speculative=drafts))
    if drafts.method != "mtp":
        model = msgspec.structs.replace(model, draft_layers=())
    return model, drafts.num_tokens
