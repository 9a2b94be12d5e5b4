"""vLLM's schedulers with one call into Rust for all requests that decode."""
