"""``hybrid-blocks plan --html``."""

from pathlib import Path

import typer

from hybrid_blocks.cli.command_line import made_by
from hybrid_blocks.model import Model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory import Gpu
from hybrid_blocks.plan.report.report import Report


def write_page(
    path: Path,
    case: tuple[Model, int, Deployment],
    report: Report,
    card: Gpu | None,
    context: typer.Context,
) -> None:
    """Write the page of a plan; it says which command made it.

    Raises:
        InvalidArgumentError: the file cannot be written.

    """
    from hybrid_blocks.view.page import write  # noqa: PLC0415 - optional, slow
    from hybrid_blocks.view.plan_page import PlanPage  # noqa: PLC0415
    from hybrid_blocks.view.plan_picture import make_plan_picture  # noqa: PLC0415

    estimated = None if card is None else card.cards.name
    picture = make_plan_picture(*case, report, estimated)
    write(PlanPage(picture, made_by=made_by(context)).document(), path)
