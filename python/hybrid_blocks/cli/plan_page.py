"""``hybrid-blocks plan --html``."""

from pathlib import Path

import typer

from hybrid_blocks.cli.command_line import made_by
from hybrid_blocks.plan.memory import Gpu
from hybrid_blocks.plan.report import Plan, Report


def write_page(
    path: Path,
    plan: Plan,
    report: Report,
    card: Gpu | None,
    context: typer.Context,
    *,
    first: int | None,
) -> None:
    """Write the page of a plan; it says which command made it.

    The page starts at requests of ``first`` tokens, where they are given.

    Raises:
        InvalidArgumentError: the file cannot be written.

    """
    from hybrid_blocks.view.page import write  # noqa: PLC0415 - optional, slow
    from hybrid_blocks.view.plan_page import PlanPage  # noqa: PLC0415
    from hybrid_blocks.view.plan_picture import make_plan_picture  # noqa: PLC0415

    estimated = None if card is None else card.cards.name
    picture = make_plan_picture(plan, report, estimated, first=first)
    write(PlanPage(picture, made_by=made_by(context)).document(), path)
