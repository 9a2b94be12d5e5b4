"""Print ``docs/coverage.md``: the level of every built-in model with every feature."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import vllm
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.doctor.answer import Reach, at_level, reach
from hybrid_blocks.tools.doctor.features import Features, Speculative, is_served
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.surface.support import release_of

_MUCH: Mapping[str, Any] = {"speculative": Speculative("mtp", 2), "lora": True, "images": True}

FEATURES: Mapping[str, Features] = MappingProxyType(
    {
        "plain": Features(),
        "MTP, 2 drafts": Features(speculative=Speculative("mtp", 2)),
        "EAGLE, 3 drafts": Features(speculative=Speculative("eagle", 3)),
        "EAGLE-3, 3 drafts": Features(speculative=Speculative("eagle3", 3)),
        "DFlash, 7 drafts": Features(speculative=Speculative("dflash", 7)),
        "DSpark, 7 drafts": Features(speculative=Speculative("dspark", 7)),
        "draft model, 3 drafts": Features(speculative=Speculative("draft_model", 3)),
        "n-grams, 4 drafts": Features(speculative=Speculative("ngram", 4)),
        "n-grams on the GPU, 4 drafts": Features(speculative=Speculative("ngram_gpu", 4)),
        "suffixes, 4 drafts": Features(speculative=Speculative("suffix", 4)),
        "drafts of a custom class, 4": Features(speculative=Speculative("custom_class", 4)),
        "extracted hidden states": Features(speculative=Speculative("extract_hidden_states", 1)),
        "offloading connector": Features(connector="OffloadingConnector"),
        "offloading by this package": Features(connector="HybridOffloadingConnector"),
        "NIXL connector": Features(connector="NixlConnector"),
        "NIXL by this package": Features(connector="HybridNixlConnector"),
        "several connectors by this package": Features(connector="HybridMultiConnector"),
        "encoder cache connector": Features(encoder_connector=True),
        "LoRA": Features(lora=True),
        "images": Features(images=True),
        "log probabilities": Features(logprobs=True),
        "priorities": Features(priorities=True),
        "decode context parallelism 2": Features(dcp=2),
        "prefill context parallelism 2": Features(pcp=2),
        "pipeline parallelism 2": Features(pp=2),
        "residency metrics": Features(residency_metrics=True),
        "FLOP metrics": Features(flop_metrics=True),
        "sampling masks": Features(sampling_masks=True),
        "no prefix caching": Features(prefix_caching=False),
        "MTP, LoRA, images, offloading": Features(**_MUCH, connector="OffloadingConnector"),
        "MTP, LoRA, images, offloading by this package": Features(
            **_MUCH, connector="HybridOffloadingConnector"
        ),
    }
)
"""The rows of each model."""

MOST_SERVED = (
    *("Qwen3.5-27B", "Qwen3.6-27B", "Qwen3.8-27B", "Qwen3.5-35B-A3B", "Qwen3.6-35B-A3B"),
    *("Qwen3.5-9B", "Qwen3-Next-80B-A3B", "gpt-oss-120b", "gpt-oss-20b", "Gemma-3-27B"),
    *("Gemma-4-31B", "Gemma-4-26B-A4B", "DeepSeek-V3", "Kimi-K3"),
    *("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Super-120B-A12B", "Granite-4.0-H-Small"),
    *("Llama-4-Scout-17B-16E", "Mistral-7B-v0.1", "Phi-4"),
)
"""Twenty built-in models that stand for what is served most; a choice, not a statistic."""

_HEAD = """\
# What runs where

For users who ask which level and scheduler their engine reaches. `make levels` makes this
page. `hybrid-blocks doctor -- vllm serve Qwen3.5-27B --spec-method mtp --enable-lora` answers for
one engine. Each of {rows} engines, {models} built-in models with {features} features, was
constructed with vLLM {release} without weights, and a few requests ran through its scheduler. MTP
is left out for models without a draft head, and layers of a drafter's own model are not part of
the plan.

- *level* is the level that `HYBRID_BLOCKS=natural` reaches on a GPU. If it is `natural`, the
  default reaches `manager`.
- *scheduler* names the code that schedules decoding requests: this package in one call, or vLLM's.

Of {served} engines that vLLM makes, {whole} reach level `manager` and the scheduler in one call.
[Reasons](reference/reasons.md) explains each.

| features | models | level | scheduler | why not more |
|---|---|---|---|---|
"""

_Outcome = tuple[str, str, str]


class Row(NamedTuple):
    """One model with one feature. ``refused`` is vLLM's reason where it refuses the engine."""

    model: str
    feature: str
    reach: Reach | None
    refused: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether level ``manager`` at least and the scheduler in one call are reached."""
        found = self.reach
        return found is not None and found.manager_level is Level.MANAGER and found.is_one_call


def rows(
    names: Iterable[str] | None = None, features: Iterable[str] = tuple(FEATURES)
) -> Iterator[Row]:
    """Yield a row for each feature of each model, by default of all built-in ones.

    Models of the same layers are constructed once.
    """
    answers: dict[tuple[object, str], Row] = {}
    features = tuple(features)
    # Entered once for all engines: a swap of vLLM's classes searches all modules.
    with at_level(Level.MANAGER):
        for name in entries() if names is None else names:
            model = load_model(name)
            layers = (model.layers, model.draft_layers, model.dtype)
            for feature in features:
                if is_served(model, FEATURES[feature]):
                    key = (layers, feature)
                    if key not in answers:
                        answers[key] = _row(model, feature, FEATURES[feature])
                    yield answers[key]._replace(model=model.name)


def _row(model: Model, feature: str, features: Features) -> Row:
    try:
        return Row(model.name, feature, reach(model, features))
    except PlanError as error:
        return Row(model.name, feature, None, str(error))


def share(found: Sequence[Row]) -> tuple[int, int]:
    """Return how many of the engines that vLLM serves reach all, and how many there are."""
    served = [row for row in found if row.reach is not None]
    return sum(row.is_whole for row in served), len(served)


def document(found: Sequence[Row]) -> str:
    """Return the whole document for the rows of all built-in models."""
    whole, served = share(found)
    head = _HEAD.format(
        release=release_of(vllm.__version__),
        models=len({row.model for row in found}),
        features=len(FEATURES),
        rows=len(found),
        whole=whole,
        served=served,
    )
    features: dict[str, list[str]] = {}
    for feature in FEATURES:
        for cells in _cells(feature, found):
            features.setdefault(cells, []).append(feature)
    lines = [f"| {'; '.join(alike)} | {cells} |" for cells, alike in features.items()]
    return head + "\n".join(lines) + "\n"


def outcome(row: Row) -> _Outcome:
    """Return the last three cells of a row: level, scheduler, and why not more."""
    found = row.reach
    if found is None:
        return "none", "none", str(row.refused)
    reasons = [
        *([f"level: {found.why_not_natural}"] if found.level is not Level.NATURAL else []),
        *([f"scheduler: {found.why_not_one_call}"] if not found.is_one_call else []),
    ]
    return f"`{found.level}`", found.scheduler, "; ".join(reasons)


def _cells(feature: str, found: Sequence[Row]) -> list[str]:
    """Return the cells behind a feature for each of its outcomes, the most frequent one first."""
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
        lines.append(f"{named} | {' | '.join(cells)}")
    return lines


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(document(list(rows())), end="")
