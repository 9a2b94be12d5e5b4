"""``LoadedBytes``: what a load of tokens writes into the blocks of one worker."""

from typing import Any

from hybrid_blocks.vllm.specs import is_state, window_of


class LoadedBytes:
    """Bytes a token of attention, and those of states, which are the same for any length."""

    def __init__(self, kv_cache_config: Any) -> None:
        """Read the groups of an engine."""
        self._of_states = 0
        # Bytes of a token, and the tokens at the end that are loaded; None for all.
        self._of_attention: list[tuple[float, int | None]] = []
        for group in kv_cache_config.kv_cache_groups:
            spec = group.kv_cache_spec
            # A spec of several kinds of layers counts them itself.
            num_layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
            page = spec.page_size_bytes * num_layers
            if is_state(spec):
                self._of_states += page
            else:
                self._of_attention.append((page / spec.block_size, window_of(spec)))

    def of(self, num_tokens: int) -> int:
        """Return the bytes of a load of ``num_tokens`` tokens."""
        if not num_tokens:
            return 0
        attention = sum(
            size * (num_tokens if window is None else min(num_tokens, window))
            for size, window in self._of_attention
        )
        return self._of_states + int(attention)
