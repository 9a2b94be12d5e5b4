"""How many bytes a model's weights take: an estimate."""

from hybrid_blocks.model.weights.parameters import Parameters, count_parameters
from hybrid_blocks.model.weights.weight_format import bits_of_name, without_format
from hybrid_blocks.model.weights.weights import weight_bytes, weights_of, with_bits

__all__ = [
    "Parameters",
    "bits_of_name",
    "count_parameters",
    "weight_bytes",
    "weights_of",
    "with_bits",
    "without_format",
]
