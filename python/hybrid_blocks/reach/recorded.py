"""What engines reach without vLLM: the rows of ``docs/coverage.md``, in the wheel as JSON."""

import re
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.table import entries
from hybrid_blocks.plan.connector import Connector
from hybrid_blocks.reach.connectors import OURS, asked
from hybrid_blocks.reach.features import Features
from hybrid_blocks.reach.named import names_of
from hybrid_blocks.reach.reached import ONE_CALL, Reach
from hybrid_blocks.vllm.level import Level

FILE: Final = "recorded.json"
_NONE: Final = "none"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What engines of a feature reach; ``models`` is None where it holds for all others."""

    feature: str
    models: tuple[str, ...] | None
    level: str
    scheduler: str
    reason: str


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and the release of vLLM whose engines were constructed."""

    release: str
    lines: tuple[Line, ...]


def of_page(page: str) -> Recorded:
    """Return the table of ``docs/coverage.md``."""
    lines = []
    for row in re.findall(r"^\| (.+) \|$", page, re.M)[1:]:
        feature, models, level, scheduler, reason = (cell.strip() for cell in row.split(" | ", 4))
        of_all = models.startswith("all")
        lines.append(
            Line(
                feature=feature,
                models=None if of_all else tuple(models.split(", ")),
                level=level.strip("`"),
                scheduler=scheduler,
                reason=reason,
            )
        )
    (release,) = re.findall(r"constructed with vLLM (\S+),", page)
    return Recorded(release=release, lines=tuple(lines))


def recorded() -> Recorded:
    """Return the table in the wheel."""
    text = files("hybrid_blocks.reach").joinpath(FILE).read_bytes()
    return msgspec.json.decode(text, type=Recorded)


def look_up(table: Recorded, model: Model, features: Features) -> Reach:
    """Return how far an engine gets by the table; several features keep it from what each does.

    Raises:
        InvalidArgumentError: the table has no row for the model or for a feature.
        PlanError: vLLM refuses the engine.

    """
    if model.name not in entries():
        raise InvalidArgumentError(
            f"vLLM is not installed, and the table of this package has built-in models alone, not "
            f"{model.name}; pip install vllm"
        )
    natural = _of_pair(features)
    one_call = None
    for name in names_of(features):
        line = _line(table, name, model.name)
        if line.level == _NONE:
            raise PlanError(line.reason)
        reasons = dict(part.split(": ", 1) for part in line.reason.split("; ") if ": " in part)
        if line.level != Level.NATURAL:
            natural = natural or reasons.get("level", line.reason)
        if line.scheduler != ONE_CALL:
            one_call = one_call or reasons.get("scheduler", line.reason)
    return Reach(
        level=Level.MANAGER if natural else Level.NATURAL,
        why_not_natural=natural,
        manager_level=Level.MANAGER,
        why_not_manager=None,
        why_not_one_call=one_call,
    )


def _of_pair(features: Features) -> str | None:
    """Return why two features together keep level ``natural`` away, if each alone does not."""
    name = features.connector_class
    if name is None or name not in OURS:
        return None
    drafts = features.speculative is not None
    connector = Connector.of(asked(name))
    return connector.refused({}, drafts=drafts, pp=features.pp, dcp=features.dcp)


def _line(table: Recorded, feature: str, model: str) -> Line:
    lines = [it for it in table.lines if it.feature == feature]
    named = [it for it in lines if it.models is not None and model in it.models]
    return (named or [it for it in lines if it.models is None])[0]
