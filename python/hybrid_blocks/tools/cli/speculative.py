"""``--speculative METHOD:N`` where only the number of draft tokens counts."""

from typing import Annotated

import typer

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.cli.given import Given

Option = Annotated[
    str | None, typer.Option("--speculative", help="Method and draft tokens of a step: mtp:2.")
]


def draft_tokens(text: str | None, given: Given, number: str, model: Model | None = None) -> int:
    """Return the draft tokens of ``--speculative``, 0 without; ``number`` is the other option.

    Raises:
        InvalidArgumentError: both options were given, or the text is none.
        PlanError: the drafter has layers of its own, or ``model`` has no draft head.

    """
    if text is None:
        return 0
    from hybrid_blocks.tools.doctor.features import (  # noqa: PLC0415 - asked for seldom
        Features,
        check_model,
        parse_speculative,
    )
    from hybrid_blocks.tools.read.speculative import WITHOUT_LAYERS  # noqa: PLC0415

    given.refuse(number, why=f"beside --speculative {text}, which says it too; leave one out")
    drafts = parse_speculative(text)
    if model is not None:
        if drafts.method not in {"mtp", *WITHOUT_LAYERS}:
            raise PlanError(
                f"--speculative {text}: the layers of its drafter cannot be planned; mtp, ngram "
                "and suffix can"
            )
        check_model(model, Features(speculative=drafts))
    return drafts.num_tokens
