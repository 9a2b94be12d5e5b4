"""One request's chunks on their way from disk to host memory."""

from dataclasses import dataclass, field


@dataclass
class Promotion:
    """What a look-up chose to bring up, and what it keeps in place until the request has it.

    ``waiting`` are keys that are being read. ``held`` are pinned in host memory.
    """

    waiting: set[bytes] = field(default_factory=set)
    held: list[bytes] = field(default_factory=list)
