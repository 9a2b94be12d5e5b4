"""Which of vLLM's tests are run."""

SUITES = {
    "core": "tests/v1/core",
    "kv_offload": "tests/v1/kv_offload",
    "kv_connector": "tests/v1/kv_connector/unit",
    "simple_kv_offload": "tests/v1/simple_kv_offload",
}

# The quick form: the files nearest to block management, whole.
QUICK = {
    "core": (
        "tests/v1/core/prefix_cache/test_mamba_eagle_resume_checkpoint.py",
        "tests/v1/core/prefix_cache/test_partial_prefix_cache_hits.py",
        "tests/v1/core/prefix_cache/test_partial_prefix_cache_primitives.py",
        "tests/v1/core/test_async_scheduler.py",
        "tests/v1/core/test_deferred_block_free.py",
        "tests/v1/core/test_prefix_caching.py",
        "tests/v1/core/test_prefix_replay.py",
        "tests/v1/core/test_scheduler.py",
        "tests/v1/core/test_single_type_kv_cache_manager.py",
        "tests/v1/core/test_swa_inflight_window_free.py",
    ),
    "simple_kv_offload": (
        "tests/v1/simple_kv_offload/test_kv_events.py",
        "tests/v1/simple_kv_offload/test_scheduler.py",
    ),
}


def targets(suites: list[str], *, quick: bool) -> list[str]:
    """Return the files and folders of the suites that a run covers."""
    if not quick:
        return [SUITES[suite] for suite in suites]
    return [file for suite in suites for file in QUICK.get(suite, ())]
