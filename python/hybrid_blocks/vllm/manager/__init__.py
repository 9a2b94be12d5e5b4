"""Level ``manager``: vLLM's ``KVCacheManager`` with every decision in Rust."""
