"""A variant of a comparison: a manager and its settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.managers import ManagerName, RustOptions, VllmOptions
from hybrid_blocks.tools.trace import SharedPrefixes, Trace, shared_prefixes
from hybrid_blocks.tools.trace.signals import session_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One column or curve of a comparison.

    Attributes:
        manager: whose manager runs.
        placement: of the Rust manager's checkpoints, by name.
        signal: in what share of cases clients are right about their sessions; None if they say
            nothing. For the Rust manager.
        host_bytes: host memory below the Rust manager's device; 0 for none.
        vllm: settings of vLLM's manager.
    """

    manager: ManagerName = ManagerName.RUST
    placement: str = "learned"
    signal: float | None = None
    host_bytes: int = 0
    vllm: VllmOptions = field(default_factory=VllmOptions)

    @property
    def name(self) -> str:
        """Its name in a report."""
        if self.manager is ManagerName.RUST:
            told = "" if self.signal is None else f" signal {self.signal:g}"
            return f"{self.manager} {self.placement}{told}"
        retention = self.vllm.retention
        return f"{self.manager} {'dense' if retention is None else retention or 'default'}"

    def options(
        self,
        trace: Trace,
        cache: Cache,
        prefixes: SharedPrefixes | None = None,
    ) -> RustOptions:
        """Set up the Rust manager for a trace and a cache; ``prefixes`` are of its block size.

        Raises:
            InvalidArgumentError: an unknown placement.
            TraceError: an accuracy that cannot be.
        """
        signals = None
        if self.signal is not None:
            prefixes = prefixes or shared_prefixes(trace, cache.geometry.hash_block_size)
            signals = session_signals(trace, prefixes, accuracy=self.signal)
        return RustOptions(
            placement=CheckpointPolicy(self.placement), signals=signals, host_bytes=self.host_bytes
        )


def make_variants(
    managers: Sequence[ManagerName],
    placements: Sequence[str],
    vllm: VllmOptions,
    signal: float | None = None,
    *,
    host_bytes: int = 0,
) -> tuple[Variant, ...]:
    """Return the Rust manager with every placement, and vLLM's own."""
    variants: list[Variant] = []
    for manager in managers:
        if manager is ManagerName.RUST:
            variants += [
                Variant(placement=placement, signal=signal, host_bytes=host_bytes)
                for placement in placements
            ]
        else:
            variants.append(Variant(manager=manager, vllm=vllm))
    return tuple(variants)
