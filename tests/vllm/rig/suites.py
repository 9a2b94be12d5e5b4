"""Which of vLLM's tests are run."""

SUITES = {
    "core": ("tests/v1/core",),
    "kv_offload": ("tests/v1/kv_offload",),
    "kv_connector": ("tests/v1/kv_connector/unit",),
    "simple_kv_offload": ("tests/v1/simple_kv_offload",),
    # Other tests of vLLM that make a scheduler, a block manager or a memory plan.
    "others": (
        "tests/distributed/aux_output_connector",
        "tests/v1/ec_connector/unit",
        "tests/v1/engine/test_engine_core.py",
        "tests/v1/engine/test_kv_cache_group_metadata.py",
        "tests/v1/spec_decode/test_dflash_lookahead.py",
        "tests/v1/spec_decode/test_dynamic_sd.py",
        "tests/v1/streaming_input",
        "tests/v1/structured_output",
        "tests/v1/test_kv_cache_spec_registry.py",
        "tests/v1/test_request.py",
        "tests/v1/worker/test_attn_utils.py",
        "tests/v1/worker/test_gpu_model_runner.py",
        "tests/v1/worker/test_utils.py",
    ),
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
        return [file for suite in suites for file in SUITES[suite]]
    return [file for suite in suites for file in QUICK.get(suite, ())]
