"""How long a step takes in virtual time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """A linear model of one forward pass, in seconds.

    It is ``fixed + per_prefill_token * p + per_sequence * s + per_context_token * c +
    per_prefill_pair * q``. The batch of ``s`` requests computes ``p`` prompt tokens and reads ``c``
    tokens of context. A pair, of ``q``, is a prompt token and a token before it.

    The defaults stand for a dense bf16 model of 8 billion parameters (32 layers, 8 KV heads of 128)
    on one accelerator of 989 TFLOP/s and 4.8 TB/s: 16 GB of weights read once a step and 1.5 ms of
    launches; 2 FLOP a parameter and token at half of the peak; sampling and bookkeeping; 131,072
    bytes of keys and values a token at 80 % of the bandwidth. Pairs cost nothing. They are a
    stated assumption, not a measurement, and shape virtual time only: the manager's own time is
    measured.
    """

    fixed: float = 16e9 / 4.8e12 + 1.5e-3
    per_prefill_token: float = 2 * 8e9 / (0.5 * 989e12)
    per_sequence: float = 5e-6
    per_context_token: float = 131_072 / (0.8 * 4.8e12)
    per_prefill_pair: float = 0.0

    def seconds(
        self, prefill_tokens: int, sequences: int, context_tokens: int, prefill_pairs: float = 0
    ) -> float:
        """Return the duration of one step."""
        return (
            self.fixed
            + self.per_prefill_token * prefill_tokens
            + self.per_sequence * sequences
            + self.per_context_token * context_tokens
            + self.per_prefill_pair * prefill_pairs
        )
