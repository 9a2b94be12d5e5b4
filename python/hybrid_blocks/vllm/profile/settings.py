"""What a profile is asked to do, sent to a process for each level."""

import msgspec

BATCHED = "batched"
"""Level ``manager`` with this package's scheduler."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One level's run.

    ``requests`` run at a time. Without ``trace`` each has ``prompt_tokens`` of which four requests
    share ``shared_tokens``, and generates ``output_tokens``. ``num_blocks`` 0 stands for enough.
    """

    level: str
    groups: str = "hybrid"
    requests: int = 256
    prompt_tokens: int = 1024
    shared_tokens: int = 528
    output_tokens: int = 256
    trace: str | None = None
    num_blocks: int = 0
    warmup_steps: int = 300
    steps: int = 500
    seed: int = 0
