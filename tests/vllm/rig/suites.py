"""Which of vLLM's tests are run."""

SUITES = {
    "core": "tests/v1/core",
    "kv_offload": "tests/v1/kv_offload",
    "kv_connector": "tests/v1/kv_connector/unit",
    "simple_kv_offload": "tests/v1/simple_kv_offload",
}
