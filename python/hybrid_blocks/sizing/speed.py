"""How long a step takes on a card, estimated from its data sheet."""

from typing import Final

from hybrid_blocks.model import Model
from hybrid_blocks.model.weights import weight_bytes
from hybrid_blocks.plan import ArenaPlan, Deployment
from hybrid_blocks.replay import StepTime
from hybrid_blocks.replay.flops import flops_of
from hybrid_blocks.sizing.errors import SizingError

SPEED: Final = {
    "T4": (65, 0.32),
    "L4": (121, 0.30),
    "A10": (125, 0.60),
    "RTX-3090": (71, 0.936),
    "RTX-4090": (165, 1.008),
    "RTX-5090": (210, 1.792),
    "V100-32GB": (125, 0.90),
    "A100-40GB": (312, 1.555),
    "L40S": (362, 0.864),
    "RTX-A6000": (155, 0.768),
    "RTX-6000-Ada": (364, 0.96),
    "A100-80GB": (312, 2.039),
    "H100-80GB": (989, 3.35),
    "H100-94GB": (835, 3.938),
    "RTX-PRO-6000": (504, 1.792),
    "H200": (989, 4.8),
    "B200": (2250, 8.0),
    "MI300X": (1307, 5.3),
}
"""Dense TFLOP/s of 16-bit matrices with sums in 32 bits, and TB/s of memory, by data sheets."""

_OF_PEAK: Final = 0.5
_OF_BANDWIDTH: Final = 0.8
_LAUNCHES: Final = 1.5e-3
_PER_SEQUENCE: Final = 5e-6
_ALL_REDUCE: Final = 10e-6


def estimate_step_time(
    model: Model, geometry: ArenaPlan, deployment: Deployment, card: str
) -> StepTime:
    """Estimate the coefficients of a step: a roofline of weights, cache and arithmetic.

    A step reads all weights once, those of every expert included, and takes 1.5 ms of launches.
    With several cards each layer waits for two sums over them. Matrices run at half of the peak;
    the cache is read at 80 % of the bandwidth, and a state is written too.

    Raises:
        SizingError: a card of unknown speed, or a model of unknown size.

    """
    if card not in SPEED:
        raise SizingError(f"--gpu {card}: its speed is not known; name one of {', '.join(SPEED)}")
    if model.weights is None:
        raise SizingError(
            f"the number of parameters of {model.name} is not known: {model.weights_unknown}"
        )
    tera_flops, tera_bytes = SPEED[card]
    compute = _OF_PEAK * tera_flops * 1e12 * deployment.tp
    read = _OF_BANDWIDTH * tera_bytes * 1e12
    weights = weight_bytes(model.weights, model.dtype) / deployment.tp
    sums = 2 * model.num_layers * _ALL_REDUCE if deployment.tp > 1 else 0.0
    flops = flops_of(model)
    of_request, of_token = _bytes_read(geometry)
    return StepTime(
        fixed=weights / (tera_bytes * 1e12) + _LAUNCHES + sums,
        per_prefill_token=flops.linear / compute,
        per_sequence=_PER_SEQUENCE + of_request / read,
        per_context_token=of_token / read,
        per_prefill_pair=2 * flops.quadratic / compute,
    )


def _bytes_read(geometry: ArenaPlan) -> tuple[float, float]:
    """Bytes of cache that a token reads for its request, and for each token of the context."""
    of_request = of_token = 0.0
    for group in geometry.groups:
        if group.kind == "state":
            of_request += 2 * group.block_bytes
        elif group.grows:
            of_token += group.block_bytes / group.block_tokens
        else:
            held = group.window or group.encoder_tokens or 0
            of_request += held * group.block_bytes / group.block_tokens
    return of_request, of_token
