//! KV-cache block manager for hybrid language models.
#![forbid(unsafe_code)]
