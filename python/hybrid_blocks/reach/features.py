"""What an engine is started with, beside its model."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import MAX_DRAFT_TOKENS
from hybrid_blocks.plan.geometry.pipeline import stages

METHODS = (
    "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model",
    "custom_class", "extract_hidden_states",
)  # fmt: skip
"""Methods of speculative decoding, as vLLM names them."""
FIRST_RUNNER = ("suffix", "custom_class")
"""Methods that only vLLM's first model runner knows; it does not schedule them asynchronously."""
CONNECTORS: Mapping[str, str] = MappingProxyType(
    {
        "offloading": "OffloadingConnector",
        "simple-offloading": "SimpleCPUOffloadConnector",
        "example": "ExampleConnector",
        "nixl": "NixlConnector",
        "lmcache": "LMCacheConnectorV1",
        "mooncake": "MooncakeConnector",
    }
)
"""vLLM's KV connectors by a short name."""


class Speculative(msgspec.Struct, frozen=True):
    """A method of speculative decoding and its draft tokens a step."""

    method: str
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.method}:{self.num_tokens}"


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an engine that may decide what runs. The defaults are vLLM's.

    ``connector`` is a short name or a class name of vLLM. ``dcp``, ``pcp`` and ``pp`` count the
    ranks of decode context, prefill context and pipeline parallelism. With ``images``, requests
    have image inputs.
    """

    speculative: Speculative | None = None
    connector: str | None = None
    encoder_connector: bool = False
    lora: bool = False
    images: bool = False
    logprobs: bool = False
    priorities: bool = False
    dcp: int = 1
    pcp: int = 1
    pp: int = 1
    residency_metrics: bool = False
    flop_metrics: bool = False
    sampling_masks: bool = False
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("dcp", "pcp", "pp"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"--{name} must be positive: {getattr(self, name)}")

    @property
    def needs_first_runner(self) -> bool:
        """Return whether vLLM falls back to its first model runner."""
        return self.speculative is not None and self.speculative.method in FIRST_RUNNER

    @property
    def connector_class(self) -> str | None:
        """Return vLLM's name of the connector."""
        return self.connector and CONNECTORS.get(self.connector, self.connector)


def is_served(model: Model, features: Features) -> bool:
    """Return whether a model has what a feature needs: MTP is of models with a draft head."""
    drafts = features.speculative
    return bool(model.draft_layers) or drafts is None or drafts.method != "mtp"


def check_model(model: Model, features: Features) -> None:
    """Check that there can be such an engine of a model.

    Raises ``PlanError`` for a draft head that the model has not, and for more pipeline stages than
    its layers fill.
    """
    if not is_served(model, features):
        others = ", ".join(method for method in METHODS if method != "mtp")
        raise PlanError(
            f"--speculative {features.speculative}: {model.name} has no draft head for multi-token "
            f"prediction; methods without one are {others}"
        )
    stages(model, model.layers, features.pp)


def parse_speculative(text: str) -> Speculative:
    """Return what ``mtp:2`` stands for.

    Raises ``InvalidArgumentError`` for an unknown method, naming those that are known, and for a
    number of tokens below 1 or above ``MAX_DRAFT_TOKENS``.
    """
    method, _, count = text.partition(":")
    if method not in METHODS:
        raise InvalidArgumentError(
            f"--speculative {text}: {method!r} is no known method; known are {', '.join(METHODS)}"
        )
    if not count.isdecimal() or int(count) < 1:
        raise InvalidArgumentError(
            f"--speculative {text}: say how many tokens are drafted a step, as in {method}:2"
        )
    if int(count) > MAX_DRAFT_TOKENS:
        raise InvalidArgumentError(
            f"--speculative {text}: vLLM verifies at most {MAX_DRAFT_TOKENS} draft tokens a step"
        )
    return Speculative(method, int(count))
