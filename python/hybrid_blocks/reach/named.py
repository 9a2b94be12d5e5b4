"""The features of the table of all models, by name. Imports no vLLM."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.reach.features import Features, Speculative

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
        "offloading connector": Features(connector="offloading"),
        "offloading by this package": Features(connector="hybrid-offloading"),
        "NIXL connector": Features(connector="nixl"),
        "NIXL by this package": Features(connector="hybrid-nixl"),
        "several connectors by this package": Features(connector="hybrid-multi"),
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
        "MTP, LoRA, images, offloading": Features(
            speculative=Speculative("mtp", 2), lora=True, images=True, connector="offloading"
        ),
        "MTP, LoRA, images, offloading by this package": Features(
            speculative=Speculative("mtp", 2), lora=True, images=True, connector="hybrid-offloading"
        ),
    }
)
"""The rows of each model."""

PLAIN = "plain"
"""The row of an engine without options."""

_RANKS = ("dcp", "pcp", "pp")


def names_of(features: Features) -> list[str]:
    """Return the rows whose features these are together, the plain one first.

    Raises:
        InvalidArgumentError: one of them has no row.

    """
    single = {}
    for name, of_row in FEATURES.items():
        options = _given(of_row)
        if len(options) == 1:
            single[next(iter(options.items()))] = name
    names = [PLAIN]
    for option in _given(features).items():
        if option not in single:
            raise InvalidArgumentError(
                f"{option[0].replace('_', ' ')} {option[1]} is not in the table of this package; "
                "pip install vllm to ask its own code"
            )
        names.append(single[option])
    return names


def _given(features: Features) -> dict[str, Any]:
    """Return what differs from an engine without options, as far as the level depends on it."""
    plain = msgspec.structs.asdict(Features())
    given = {
        name: value
        for name, value in msgspec.structs.asdict(features).items()
        if value != plain[name] and name != "tp"
    }
    if features.speculative is not None:
        given["speculative"] = features.speculative.method
    if features.connector is not None:
        given["connector"] = features.connector_class
    return {name: 2 if name in _RANKS else value for name, value in given.items()}
