"""A variant of a comparison: a manager and its settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.managers import ManagerName, RustOptions, VllmOptions
from hybrid_blocks.replay.policy import PolicyName, apply_policy
from hybrid_blocks.trace import SharedPrefixes, Trace, shared_prefixes
from hybrid_blocks.trace.signals import session_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One column or curve of a comparison.

    Attributes:
        manager: whose manager runs.
        placement: of the Rust manager's checkpoints, by name.
        policy: what the Rust manager evicts first.
        signal: in what share of cases clients are right about their sessions; None if they say
            nothing. For the Rust manager.
        host_bytes: host memory below the Rust manager's device; 0 for none.
        vllm: settings of vLLM's manager.
    """

    manager: ManagerName = ManagerName.RUST
    placement: str = "learned"
    policy: PolicyName = PolicyName.LRU
    signal: float | None = None
    host_bytes: int = 0
    vllm: VllmOptions = field(default_factory=VllmOptions)

    @property
    def name(self) -> str:
        """Its name in a report."""
        if self.manager is ManagerName.RUST:
            told = "" if self.signal is None else f" signal {self.signal:g}"
            return f"{self.manager} {self.placement} {self.policy}{told}"
        retention = self.vllm.retention
        return f"{self.manager} {'dense' if retention is None else retention or 'default'}"

    def options(
        self,
        trace: Trace,
        cache: Cache,
        config: EngineConfig,
        prefixes: SharedPrefixes | None = None,
    ) -> RustOptions:
        """Set up the Rust manager for a trace and a cache; ``prefixes`` are of its block size.

        Raises:
            InvalidArgumentError: an unknown placement.
            ReplayError: a policy that needs a model.
            TraceError: an accuracy that cannot be.
        """
        signals = None
        if self.signal is not None:
            prefixes = prefixes or shared_prefixes(trace, cache.geometry.hash_block_size)
            signals = session_signals(trace, prefixes, accuracy=self.signal)
        options = RustOptions(
            placement=CheckpointPolicy(self.placement), signals=signals, host_bytes=self.host_bytes
        )
        return apply_policy(self.policy, trace, cache, config, options)


def make_variants(
    managers: Sequence[ManagerName],
    placements: Sequence[str],
    policies: Sequence[PolicyName],
    vllm: VllmOptions,
    signal: float | None = None,
    *,
    host_bytes: int = 0,
) -> tuple[Variant, ...]:
    """Return every placement with every policy for the Rust manager, and vLLM's own."""
    variants: list[Variant] = []
    for manager in managers:
        if manager is ManagerName.RUST:
            variants += [
                Variant(placement=placement, policy=policy, signal=signal, host_bytes=host_bytes)
                for placement in placements
                for policy in policies
            ]
        else:
            variants.append(Variant(manager=manager, vllm=vllm))
    return tuple(variants)
