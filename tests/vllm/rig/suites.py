"""Which of vLLM's tests are run."""

SUITES = {
    "core": "tests/v1/core",
    "kv_offload": "tests/v1/kv_offload",
    "kv_connector": "tests/v1/kv_connector/unit",
    "simple_kv_offload": "tests/v1/simple_kv_offload",
}

# Left out of the quick form, by file: minutes of random steps each, or an engine with weights from
# the hub, which no machine without network can have.
SLOW = (
    "tests/v1/core/test_priority_scheduler_random.py",
    "tests/v1/core/test_reset_prefix_cache_e2e.py",
    "tests/v1/core/test_scheduler_e2e.py",
    "tests/v1/core/prefix_cache/test_hybrid_prefix_cache_hit_rate.py",
    "tests/v1/kv_connector/unit/test_offloading_connector.py",
    "tests/v1/simple_kv_offload/test_integration.py",
)
