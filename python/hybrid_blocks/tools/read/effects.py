"""Which of vLLM's options change a plan, which cannot be planned, and which change nothing in it.

Every recorded option stands in one of the three; a new one that stands in none is refused.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hybrid_blocks.model.layer import ChunkedAttention, LatentAttention

MAPPED: Final = frozenset(
    {
        *("model", "hf_config_path", "hf_overrides", "dtype", "max_model_len"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        *("kv_cache_dtype", "block_size", "mamba_cache_mode", "mamba_ssm_cache_dtype"),
        *("kv_cache_memory_bytes", "enable_prefix_caching", "max_num_batched_tokens"),
        *("max_num_seqs", "enable_chunked_prefill", "performance_mode", "async_scheduling"),
        *("speculative_config", "spec_method", "spec_model", "spec_tokens"),
        *("distributed_executor_backend", "kv_transfer_config", "kv_offloading_size"),
        *("mamba_cache_dtype", "mamba_block_size", "disable_sliding_window"),
        *("attention_backend", "attention_config", "disable_hybrid_kv_cache_manager", "config"),
        *("quantization", "gpu_memory_utilization"),
        *("gdn_prefill_backend", "kda_prefill_backend"),
    }
)
"""Options that a deployment is made of."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "decode_context_parallel_size": ((1,), "context parallelism cannot be planned"),
        "prefill_context_parallel_size": ((1,), "context parallelism cannot be planned"),
        "kv_cache_dtype_skip_layers": (([],), "layers with caches of two types cannot be planned"),
        "num_gpu_blocks_override": (
            (None,),
            "vLLM then ignores the memory; leave it out, and give --memory",
        ),
        "use_replayssm": ((False,), "the recent inputs that it keeps cannot be planned"),
        "mm_ipc_gpu_memory_gb": (
            (0, 0.0),
            "vLLM takes it from the cache's memory; leave it out, and give --memory without it",
        ),
        "max_num_active_seqs": ((None,), "give the same number as --max-num-seqs instead"),
        "diffusion_config": ((None,), "the blocks of a diffusion model cannot be planned"),
        "engram_config": ((None,), "its tables cannot be planned"),
        "runner": (("auto", "generate"), "a model that generates no text cannot be planned"),
        "convert": (("auto", "none"), "a model that generates no text cannot be planned"),
        "worker_cls": (("auto",), "the caches of another worker are not known"),
        "model_class_overrides": ((None, {}), "the caches of another class are not known"),
    }
)
"""Values that change nothing, and why another value is refused."""

SILENT: Final = frozenset(
    {
        # The server, its protocol and its logs.
        *("headless", "api_server_count", "grpc", "lora_modules", "chat_template"),
        *("chat_template_content_format", "trust_request_chat_template", "trust_request_mm_kwargs"),
        *("default_chat_template_kwargs", "reasoning_effort_map", "response_role"),
        *("return_tokens_as_token_ids", "enable_auto_tool_choice", "tool_call_parser"),
        *("exclude_tools_when_tool_choice_none", "tool_parser_plugin", "tool_strict_level"),
        *("tool_server", "max_log_len", "enable_prompt_tokens_details", "log_config_file"),
        *("enable_per_request_metrics", "enable_server_load_tracking", "sse_keep_alive_interval"),
        *("enable_force_include_usage", "enable_tokenizer_info_endpoint", "enable_log_outputs"),
        *("enable_log_deltas", "cohere_is_reasoning_model", "cohere_format", "log_error_stack"),
        *("anthropic_disabled_thinking_effort", "tokens_only", "enable_scale_out"),
        *("fingerprint_mode", "fingerprint_value", "host", "port", "grpc_port", "uds"),
        *("data_parallel_supervisor_port", "dp_supervisor_probe_interval_s"),
        *("dp_supervisor_probe_timeout_s", "dp_supervisor_probe_failure_threshold"),
        *("uvicorn_log_level", "disable_uvicorn_access_log", "disable_access_log_for_endpoints"),
        *("allow_credentials", "allowed_origins", "allowed_methods", "allowed_headers", "api_key"),
        *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "enable_ssl_refresh", "ssl_cert_reqs"),
        *("ssl_ciphers", "root_path", "middleware", "enable_request_id_headers"),
        *("disable_fastapi_docs", "enable_offline_docs", "enable_flash_late_interaction"),
        *("h11_max_incomplete_event_size", "h11_max_header_count", "enable_log_requests"),
        *("disable_log_stats", "aggregate_engine_logging", "fail_on_environ_validation"),
        *("shutdown_timeout", "logging_config", "log_level", "show_hidden_metrics_for_version"),
        *("otlp_traces_endpoint", "collect_detailed_traces", "per_request_spec_decode_metrics"),
        *("kv_cache_metrics", "kv_cache_metrics_sample", "custom_histogram_buckets"),
        *("cudagraph_metrics", "enable_layerwise_nvtx_tracing", "enable_mfu_metrics"),
        *("enable_logging_iteration_details", "jit_monitor_mode", "jit_monitor_verbose"),
        *("reasoning_parser", "reasoning_parser_plugin", "structured_outputs_config"),
        *("reasoning_config", "aux_output_config", "profiler_config", "watchdog_config"),
        *("watermark_config", "stream_interval", "io_processor_plugin", "renderer_num_workers"),
        *("logits_processors", "pooler_config", "generation_config"),
        *("override_generation_config", "max_logprobs", "logprobs_mode", "use_fp64_gumbel"),
        *("enable_trace_replay", "return_sampling_mask", "enable_return_routed_experts"),
        # Where the model comes from, and how its weights are stored.
        *("tokenizer", "tokenizer_mode", "trust_remote_code", "seed", "revision", "code_revision"),
        *("tokenizer_revision", "quantization_config", "hf_token", "config_format"),
        *("allow_deprecated_quantization", "skip_tokenizer_init", "served_model_name"),
        *("model_impl", "load_format", "download_dir", "safetensors_load_strategy"),
        *("safetensors_prefetch_num_threads", "safetensors_prefetch_block_size"),
        *("model_loader_extra_config", "ignore_patterns", "use_tqdm_on_load"),
        *("pt_load_map_location", "weight_transfer_config", "enable_sleep_mode"),
        *("sleep_mode_backend", "sleep_mode_offload_cudagraph", "sleep_preserve_parameter_names"),
        *("enable_cumem_allocator", "enable_nccl_comm_suspend", "max_parallel_loading_workers"),
        # Memory beside the cache: --memory is what is left of it.
        *("offload_backend", "cpu_offload_gb", "cpu_offload_params"),
        *("offload_group_size", "offload_num_in_group", "offload_prefetch_step", "offload_params"),
        *("enable_lora", "max_loras", "max_lora_rank", "lora_dtype", "max_cpu_loras"),
        *("enable_tower_connector_lora", "fully_sharded_loras", "lora_target_modules"),
        *("default_mm_loras", "specialize_active_lora", "enable_mixed_moe_lora_format"),
        *("enable_moe_shared_loras", "max_lora_cls_labels"),
        *("allowed_local_media_path", "allowed_media_domains", "enable_prompt_embeds"),
        *("language_model_only", "limit_mm_per_prompt", "enable_mm_embeds", "media_io_kwargs"),
        *("mm_processor_kwargs", "mm_processor_cache_gb", "mm_processor_cache_type"),
        *("mm_hasher_algorithm", "mm_shm_cache_max_object_size_mb", "mm_encoder_only"),
        *("mm_encoder_tp_mode", "mm_encoder_attn_backend", "mm_encoder_attn_dtype"),
        *("mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_path"),
        *("mm_encoder_fp8_scale_save_margin", "interleave_mm_strings", "skip_mm_profiling"),
        *("video_pruning_rate", "video_pruning_method", "mm_tensor_ipc", "mm_processor_device"),
        *("mm_device_do_normalize", "ec_transfer_config", "ec_manager_config"),
        # How a step is computed, and over which machines.
        *("enforce_eager", "compilation_config", "optimization_level", "cudagraph_capture_sizes"),
        *("max_cudagraph_capture_size", "kernel_config", "ir_op_priority", "monokernel"),
        *("enable_flashinfer_autotune", "moe_backend", "linear_backend", "mamba_backend"),
        *("sparse_indexer_topk_backend", "mamba_ssu_algorithm"),
        *("enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds"),
        *("kda_decode_backend", "disable_cascade_attn", "master_addr"),
        *("master_port", "nnodes", "node_rank", "distributed_timeout_seconds", "numa_bind"),
        *("cpu_distributed_timeout_seconds", "numa_bind_nodes", "numa_bind_cpus", "device_ids"),
        *("dcp_comm_backend", "dcp_q_replicate", "dcp_kv_cache_interleave_size"),
        *("cp_kv_cache_interleave_size", "data_parallel_rank", "data_parallel_start_rank"),
        *("data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port"),
        *("data_parallel_backend", "data_parallel_hybrid_lb", "data_parallel_external_lb"),
        *("data_parallel_multi_port_external_lb", "enable_hc_sp", "enable_expert_parallel"),
        *("enable_batch_sharded_sampling", "enable_ep_weight_filter", "all2all_backend"),
        *("enable_dbo", "enable_shm_tensor_arena", "ubatch_size", "enable_elastic_ep"),
        *("elastic_ep_max_dp_size", "dbo_decode_token_threshold", "dbo_prefill_token_threshold"),
        *("dp_sync_interval", "disable_nccl_for_dp_synchronization", "enable_eplb", "eplb_config"),
        *("expert_placement_strategy", "ray_workers_use_nsight", "disable_custom_all_reduce"),
        *("worker_extension_cls", "enable_fault_tolerance", "fault_tolerance_config"),
        *("additional_config", "replayssm_buffer_len"),
        # In which order requests run, and what the prefix cache finds.
        *("max_num_scheduled_tokens", "max_num_queued_reqs", "max_num_queued_tokens"),
        *("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
        *("scheduling_policy", "disable_chunked_mm_input", "scheduler_cls"),
        *("scheduler_reserve_full_isl", "prefill_schedule_interval", "kv_events_config"),
        *("prefix_caching_hash_algo", "prefix_cache_retention_interval", "prefix_match_unit"),
        *("enable_mamba_shared_prefix_checkpoint", "kv_sharing_fast_prefill"),
        *("swa_bounded_replay", "kv_offloading_backend", "watermark"),
    }
)
"""Options that change nothing in a plan of a given memory."""

VARIABLES: Mapping[str, tuple[tuple[str, ...], str | None, str]] = MappingProxyType(
    {
        "VLLM_KV_CACHE_LAYOUT": (
            ("NHD", "HND", "LBNHC", "LBHNC"),
            None,
            "a layout with blocks or heads outside of the layers cannot be planned",
        ),
        "VLLM_SSM_CONV_STATE_LAYOUT": (("SD", "DS"), None, "vLLM takes SD and DS"),
        "VLLM_MLA_DISABLE": (
            ("0",),
            LatentAttention.kind,
            "latents kept as plain attention cannot be planned",
        ),
        "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": (
            ("1",),
            ChunkedAttention.kind,
            "chunked attention kept whole cannot be planned",
        ),
    }
)
"""Variables with the values that change nothing, the kind of layers that others matter to, and why.

A kind None stands for all layers.
"""
