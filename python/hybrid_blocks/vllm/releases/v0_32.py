"""vLLM 0.32: hits end where every group can go on, and a prompt sent again leaves a token."""

from hybrid_blocks.vllm.releases import v0_31


class Release(v0_31.Release):
    """The changes since 0.31."""

    rules = v0_31.Release.rules | {
        "keys_states_at_block_ends",
        "leaves_last_token",
        "looks_past_limit",
        "moves_drafts_at_checkpoints",
        "places_checkpoints_at_hits",
        "retains_checkpoints_by_interval",
    }
