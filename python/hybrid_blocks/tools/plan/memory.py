"""The free memory of a card, estimated where it was not measured."""

import re
from difflib import get_close_matches
from typing import Final

import msgspec

from hybrid_blocks.geometry.card import CARDS
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.weights import weight_bytes
from hybrid_blocks.units import gib, parse_memory

_FORM: Final = re.compile(r"(?:(\d+)\s*[x×*]\s*)?(.+)", re.IGNORECASE)  # noqa: RUF001 -- people write it
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards. ``count`` is None where only the kind was given; ``note`` says how it was read.

    A kind such as ``80GB`` has no exact size: it stands on cards of several sizes. ``kind`` is the
    card of the table whose memory it is, None where only GiB were given.
    """

    name: str
    total_bytes: int
    count: int | None
    kind: str | None = None
    note: str | None = None


def parse_cards(text: str, option: str = "--gpu") -> Cards:
    """Read ``2xH100-80GB``, ``H200``, ``2x48GiB`` or ``80GB``, which is what cards are sold with.

    Errors name the ``option``.

    Raises:
        PlanError: neither a card of the table nor a size.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None or match[1] == "0":
        raise PlanError(
            f"{option} {text!r}: write a card such as 2xH100-80GB, or a size such as 48GiB"
        )
    count = None if match[1] is None else int(match[1])
    named = re.sub(r"[\s_]+", "-", match[2].strip()).lower()
    known = {name.lower(): name for name in CARDS}
    known |= {other.lower(): name for name, card in CARDS.items() for other in card.also}
    for alias in (named, named.removeprefix("nvidia-").removeprefix("geforce-")):
        if alias in known:
            name = known[alias]
            return Cards(name=name, total_bytes=CARDS[name].total_bytes, count=count, kind=name)
    if (size := _SIZE.fullmatch(match[2].strip())) is not None:
        return _of_size(match[2].strip(), size, count)
    near = get_close_matches(named, known, n=1)
    meant = f"; did you mean {known[near[0]]}?" if near else ""
    raise PlanError(
        f"{option} {text}: no such card; known are {', '.join(CARDS)}, or give its GiB: 48GiB"
        f"{meant}"
    )


def sold_with(gigabytes: float) -> list[str]:
    """Return the cards that are sold with a size, the one with the least memory first."""
    names = (name for name, card in CARDS.items() if card.sold == gigabytes)
    return sorted(names, key=lambda name: CARDS[name].gib)


def _of_size(text: str, size: re.Match[str], count: int | None) -> Cards:
    """Take GiB as they are, and GB as the least that a card sold with them has."""
    total = parse_memory(text, "--gpu")
    if size[2].upper() != "GB":
        return Cards(name=text, total_bytes=total, count=count)
    names = sold_with(float(size[1]))
    if not names:
        note = f"--gpu {text} is read as {total / 2**30:.2f} GiB: no known card is sold with it"
        return Cards(name=text, total_bytes=total, count=count, note=note)
    each = ", ".join(f"{name} {CARDS[name].gib:.2f}" for name in names)
    kind = names[0]
    note = (
        f"--gpu {text} is read as {CARDS[kind].gib:.2f} GiB, the least of the cards sold with it "
        f"({each}); name the card, or give its GiB"
    )
    total = CARDS[kind].total_bytes
    return Cards(name=text, total_bytes=total, count=count, kind=kind, note=note)


UTILIZATION: Final = 0.92
"""Default of ``--gpu-memory-utilization`` in vLLM 0.33."""

_FIXED: Final = 2**30
"""Context, communication buffers and CUDA graphs: about a GiB on each card."""

_WIDTHS: Final = 8
"""Activations that live at once, in widths of the hidden state."""

_LOGITS: Final = 4 * 151_936
"""Bytes of one request's logits, in float32 and with the vocabulary of most models."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of one card's memory, in bytes; ``free`` is what is left for the cache."""

    card: str
    total: int
    usable: int
    utilization: float
    parameters: int
    parameters_source: str
    is_quantized: bool
    weights: int
    activations: int

    @property
    def free(self) -> int:
        """Memory of the cache."""
        return self.usable - self.weights - self.activations

    @property
    def line(self) -> str:
        """Say it in one sentence."""
        return (
            f"{gib(self.free)} are an estimate: {self.utilization:g} x {gib(self.total)} of "
            f"{self.card} = {gib(self.usable)}, less {gib(self.weights)} of weights "
            f"({self.parameters / 1e9:,.1f} billion parameters, {self.parameters_source}) "
            f"and {gib(self.activations)} for activations, CUDA graphs and context; --memory gives "
            "it exactly, as 'Available KV cache memory' in vLLM's log"
        )


def estimate(
    model: Model, deployment: Deployment, cards: Cards, utilization: float = UTILIZATION
) -> Estimate:
    """Estimate the free memory of each card of a deployment.

    Raises:
        PlanError: the model's parameters are not known, more or fewer cards are given than the
            deployment has ranks, or nothing is left.
    """
    check_count(deployment, cards)
    ranks = deployment.tp * deployment.pp
    if not 0 < utilization <= 1:
        raise PlanError(f"--gpu-memory-utilization {utilization}: a number above 0, at most 1")
    if model.weights is None:
        raise PlanError(
            f"--gpu: the number of parameters of {model.name} is not known: "
            f"{model.weights_unknown}; give --memory, or a config.json that tells it"
        )
    found = Estimate(
        card=cards.name,
        total=cards.total_bytes,
        usable=int(utilization * cards.total_bytes),
        utilization=utilization,
        parameters=model.weights.parameters,
        parameters_source=model.weights.source,
        is_quantized=model.weights.bits is not None,
        weights=weight_bytes(model.weights, model.dtype) // ranks,
        activations=_FIXED
        + 2 * _WIDTHS * deployment.max_num_batched_tokens * model.weights.hidden_size
        + _LOGITS * deployment.max_num_seqs,
    )
    if found.free <= 0:
        raise PlanError(
            f"--gpu {cards.name}: nothing is left for the cache: {gib(found.usable)} usable, "
            f"{gib(found.weights)} of weights, {gib(found.activations)} besides; give more "
            "cards, or weights in fewer bits"
        )
    return found


def check_count(deployment: Deployment, cards: Cards) -> None:
    """Refuse more or fewer cards than ranks."""
    ranks = deployment.tp * deployment.pp
    if cards.count is not None and cards.count != ranks:
        raise PlanError(
            f"--gpu {cards.count}x{cards.name}: --tp {deployment.tp} and --pp {deployment.pp} make "
            f"{ranks} ranks; give as many cards, or --tp {cards.count}"
        )


def on_cards(deployment: Deployment, cards: Cards) -> Deployment:
    """Return the deployment on the cards; vLLM chooses kernels by them."""
    check_count(deployment, cards)
    return msgspec.structs.replace(deployment, card=cards.kind or deployment.card)


def note_excess(model: Model, memory_bytes: int, cards: Cards) -> Model:
    """Return the model with a note where one card has less than the given memory."""
    if memory_bytes <= cards.total_bytes:
        return model
    note = (
        f"{gib(memory_bytes)} a GPU are more than {cards.name} (--gpu) has: "
        f"{gib(cards.total_bytes)}"
    )
    return msgspec.structs.replace(model, notes=(*model.notes, note))


def memory_of_gpu(
    cards: Cards, model: Model, deployment: Deployment, utilization: float | None
) -> tuple[Model, Estimate]:
    """Return the model with a note on the estimate, and the estimate of each card's memory."""
    found = estimate(model, deployment, cards, utilization or UTILIZATION)
    notes = (*model.notes, found.line, *filter(None, (cards.note,)))
    return msgspec.structs.replace(model, notes=notes), found
