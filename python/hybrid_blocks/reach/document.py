"""``docs/coverage.md``: the table as a document."""

from collections.abc import Iterable, Sequence
from textwrap import fill

import vllm

from hybrid_blocks.reach.named import FEATURES
from hybrid_blocks.reach.reached import ONE_CALL
from hybrid_blocks.reach.table import MOST_SERVED, Row, share
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.support import release_of

_HEAD = """\
# What runs where

For users who ask which level and scheduler their engine reaches. A command makes this file, and a
test compares the two:
```
hybrid-blocks doctor --table > docs/coverage.md && make reference
hybrid-blocks doctor --model Qwen3.5-27B --speculative mtp:2 --lora    # one engine
```
Each engine was constructed with vLLM {release}, without weights: its configuration, its plan of the
KV cache for the model's layers, and its scheduler. A few requests with the feature then ran through
it. {models} built-in models and {features} features make {rows} engines. MTP is left out for models
without a draft head. Layers of a drafter's own model are not part of the plan, and the package that
vLLM wants for suffixes, arctic-inference, was not there.

- *level* is the level that `HYBRID_BLOCKS=natural` reaches on a GPU. If it is `natural`, the
  default reaches `manager`.
- *scheduler* names the code that schedules decoding requests unless `HYBRID_BLOCKS_SCHEDULER=off`:
  this package in one call, or vLLM's own.

Of the 20 models named at the end, {whole} of {served} engines ({percent:.0f} %) reach level
`manager` and the scheduler in one call.
[Reasons](reference/reasons.md) explains each.

| feature | models | level | scheduler | why not more |
|---|---|---|---|---|
"""

_MODELS = """
## The 20 models of the figure
"""

_Outcome = tuple[str, str, str]


def document(found: Sequence[Row]) -> str:
    """Return the whole document for the rows of all built-in models."""
    most_served = [row for row in found if row.model in MOST_SERVED]
    whole, served = share(most_served)
    head = _HEAD.format(
        release=release_of(vllm.__version__),
        models=len({row.model for row in found}),
        features=len(FEATURES),
        rows=len(found),
        whole=whole,
        served=served,
        percent=100 * whole / served,
    )
    lines = [line for feature in FEATURES for line in _lines(feature, found)]
    named = fill(", ".join(MOST_SERVED) + ".", 100, break_on_hyphens=False)
    return head + "\n".join(lines) + "\n" + _MODELS + named + "\n"


def outcome(row: Row) -> _Outcome:
    """Return the last three cells of a row: level, scheduler, and why not more."""
    found = row.reach
    if found is None:
        return "none", "none", str(row.refused)
    reasons = [
        *([f"level: {found.why_not_natural}"] if found.level is not Level.NATURAL else []),
        *([f"scheduler: {found.why_not_one_call}"] if found.scheduler != ONE_CALL else []),
    ]
    return f"`{found.level}`", found.scheduler, "; ".join(reasons)


def _lines(feature: str, found: Sequence[Row]) -> list[str]:
    """Return a line for each outcome of a feature, the most frequent one first."""
    models: dict[_Outcome, list[str]] = {}
    for row in found:
        if row.feature == feature:
            models.setdefault(outcome(row), []).append(row.model)
    ordered = sorted(models.items(), key=lambda item: -len(item[1]))
    rest = [name for _, names in ordered[1:] for name in names]
    lines = []
    for number, (cells, names) in enumerate(ordered):
        named = _joined(names)
        if number == 0:
            named = f"all but those below, {len(names)}" if rest else f"all {len(names)}"
        lines.append(f"| {feature} | {named} | {' | '.join(cells)} |")
    return lines


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
