"""Fields and environment variables of vLLM that change no stored byte, each with the reason.

All others count: one that is new in vLLM does, until it is sorted in here.
"""

from collections.abc import Mapping
from typing import Final

LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "other parts of the identity say it": {
        # Groups, their tokens and the parts of a block make the layout.
        "CacheConfig": "block_size mamba_block_size mamba_page_size_padded skip_page_size_padded "
        "effective_attention_block_size kv_cache_layout sliding_window",
        "AttentionConfig": "backend backend_per_kind",
        "DeviceConfig": "device device_type",
        # A commit or the content of files stands for a revision, the configuration for its path.
        "ModelConfig": "hf_text_config hf_overrides seed spec_target_max_model_len revision "
        "hf_config_path",
        "ModelArchitectureConfig": "derived_max_model_len_and_key",
        "SpeculativeConfig": "attention_backend target_model_config target_parallel_config "
        "draft_parallel_config max_model_len revision",
        # Made of the model's files, its configuration and its quantization.
        "VllmConfig": "quant_config",
    },
    "keys differ where it does": {
        "CacheConfig": "prefix_match_unit hash_block_size cache_hit_alignment_tokens "
        "prefix_caching_hash_algo",
        "MultiModalConfig": "mm_hasher_algorithm enable_mm_embeds",
        "ModelConfig": "enable_prompt_embeds",
    },
    "tokens and media come before the keys": {
        "ModelConfig": "tokenizer_revision skip_tokenizer_init renderer_num_workers "
        "io_processor_plugin served_model_name hf_token allowed_local_media_path "
        "allowed_media_domains",
        "MultiModalConfig": "interleave_mm_strings limit_per_prompt mm_tensor_ipc "
        "mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type "
        "mm_shm_cache_max_object_size_mb",
        "BaseDummyOptions": "count",
        "VideoDummyOptions": "count num_frames width height",
        "ImageDummyOptions": "count width height",
        "AudioDummyOptions": "count length",
    },
    "samples and answers come after the cache": {
        "ModelConfig": "generation_config override_generation_config logits_processors "
        "return_sampling_mask max_logprobs logprobs_mode use_fp64_gumbel enable_trace_replay",
        "PoolerConfig": "task pooling_type seq_pooling_type tok_pooling_type use_activation "
        "enable_flash_late_interaction dimensions enable_chunked_processing max_embed_len "
        "logit_mean logit_sigma step_tag_id returned_token_ids",
        "SpeculativeConfig": "rejection_sample_method synthetic_acceptance_rates "
        "synthetic_acceptance_length draft_sample_method fly_window_size fly_entropy_threshold "
        "fly_entropy_top_k enable_adaptive_verification prompt_lookup_max prompt_lookup_min "
        "suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
        "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob "
        "use_local_argmax_reduction",
        "StructuredOutputsConfig": "backend disable_any_whitespace disable_additional_properties "
        "reasoning_parser reasoning_parser_plugin enable_in_reasoning",
        "ReasoningConfig": "reasoning_parser reasoning_start_str reasoning_end_str "
        "_reasoning_start_token_ids _reasoning_end_token_ids _natural_reasoning_end_token_ids "
        "_enabled",
        "WatermarkConfig": "key algorithm alpha context_width deduplicate_contexts "
        "deduplicate_contexts_max_history prf allow_target_only_watermarking",
        "AuxOutputConfig": "enable_return_routed_experts max_bytes",
        "LoRAConfig": "max_lora_cls_labels",
    },
    "the order of requests, and which are kept": {
        "SchedulerConfig": "runner_type max_num_batched_tokens max_num_scheduled_tokens "
        "max_num_seqs max_num_active_seqs long_prefill_token_threshold "
        "long_prefill_token_threshold_adaptive max_num_queued_reqs max_num_queued_tokens "
        "enable_chunked_prefill is_multimodal_model max_num_encoder_input_tokens "
        "encoder_cache_size policy disable_chunked_mm_input scheduler_cls "
        "disable_hybrid_kv_cache_manager scheduler_reserve_full_isl watermark "
        "prefill_schedule_interval async_scheduling stream_interval",
        "CacheConfig": "enable_prefix_caching prefix_cache_retention_interval "
        "enable_mamba_shared_prefix_checkpoint",
        "SpeculativeConfig": "num_speculative_tokens_per_batch_size disable_padded_drafter_batch "
        "disable_eagle_block_drop disable_lookahead_block_hashes",
        "EncoderCacheManagerConfig": "encoder_cache_manager_cls manager_config",
    },
    "sizes of memory": {
        "CacheConfig": "gpu_memory_utilization num_gpu_blocks_override num_gpu_blocks "
        "num_cpu_blocks simple_cpu_offload_num_blocks kv_cache_size_tokens "
        "kv_cache_max_concurrency kv_cache_memory_bytes kv_offloading_size kv_offloading_backend "
        "user_specified_block_size _block_size_resolved",
        "AttentionConfig": "sparse_mla_prefill_workspace_factor",
        "ModelConfig": "enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend "
        "sleep_mode_offload_cudagraph enable_nccl_comm_suspend enable_cumem_allocator",
        "MultiModalConfig": "skip_mm_profiling",
        "LoRAConfig": "max_lora_rank max_loras max_cpu_loras specialize_active_lora",
        "OffloadConfig": "offload_backend",
        "UVAOffloadConfig": "cpu_offload_gb cpu_offload_params",
        "PrefetchOffloadConfig": "offload_group_size offload_num_in_group offload_prefetch_step "
        "offload_params",
        "EngramConfig": "cpu_offload embedding_across_dp dp_shared_memory use_thp",
    },
    "how work is split over ranks: the layout knows them, and sums differ by rounding only": {
        "ParallelConfig": "pipeline_parallel_size tensor_parallel_size "
        "prefill_context_parallel_size data_parallel_size data_parallel_size_local "
        "data_parallel_rank data_parallel_rank_local data_parallel_master_ip "
        "data_parallel_rpc_port dp_sync_interval data_parallel_master_port data_parallel_backend "
        "data_parallel_external_lb data_parallel_hybrid_lb is_moe_model enable_hc_sp "
        "enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter enable_eplb "
        "expert_placement_strategy all2all_backend max_parallel_loading_workers "
        "disable_custom_all_reduce enable_shm_tensor_arena enable_elastic_ep "
        "elastic_ep_max_dp_size enable_dbo ubatch_size dbo_decode_token_threshold "
        "dbo_prefill_token_threshold disable_nccl_for_dp_synchronization ray_workers_use_nsight "
        "ray_runtime_env placement_group distributed_executor_backend master_addr master_port "
        "node_rank nnodes numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids "
        "distributed_timeout_seconds cpu_distributed_timeout_seconds world_size rank "
        "_data_parallel_master_port_list _coord_store_port decode_context_parallel_size "
        "dcp_kv_cache_interleave_size dcp_comm_backend dcp_q_replicate cp_kv_cache_interleave_size "
        "_allow_auto_resolve_cp_interleave_size data_parallel_index _api_process_count "
        "_api_process_rank enable_fault_tolerance",
        "EPLBConfig": "window_size step_interval num_redundant_experts log_balancedness "
        "log_balancedness_interval use_async policy communicator enable_migration_batching",
        "FaultToleranceConfig": "engine_recovery_timeout_sec",
        "SpeculativeConfig": "draft_tensor_parallel_size tensor_parallel_size",
        "MultiModalConfig": "mm_encoder_tp_mode",
        "LoRAConfig": "fully_sharded_loras",
        "AttentionConfig": "indexer_tp_shard_min_rows minimax_m3_indexer_cp",
    },
    # One engine mixes them already, as by the size of a step; prefix caching rests on it.
    "kernels for the same numbers up to rounding": {
        "ModelConfig": "enforce_eager disable_cascade_attn",
        "SpeculativeConfig": "enforce_eager",
        "VllmConfig": "optimization_level performance_mode",
        "AttentionConfig": "minimax_m3_msa_decode_backend flash_attn_version "
        "flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv "
        "tq_max_kv_splits_for_cuda_graph flex_attn_block_m flex_attn_block_n "
        "flex_attn_q_block_size flex_attn_kv_block_size",
        "MultiModalConfig": "mm_encoder_attn_backend",
        "KernelConfig": "enable_flashinfer_autotune "
        "enable_rocm_segmented_attn_autotune enable_cutedsl_warmup enable_jit_warmup monokernel",
        "IrOpPriorityConfig": "rms_norm fused_add_rms_norm gelu_and_mul_sparse",
        "CompilationConfig": "mode debug_dump_path cache_dir compile_cache_save_format backend "
        "custom_ops ir_enable_torch_wrap splitting_ops compile_mm_encoder cudagraph_mm_encoder "
        "encoder_cudagraph_token_budgets encoder_cudagraph_max_vision_items_per_batch "
        "encoder_cudagraph_max_frames_per_batch cudagraph_decoder_replay "
        "decoder_replay_cudagraph_capture_sizes decoder_replay_trim_threshold compile_sizes "
        "compile_ranges_endpoints inductor_compile_config cudagraph_mode cudagraph_num_of_warmups "
        "cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_specialize_lora "
        "use_inductor_graph_partition max_cudagraph_capture_size "
        "local_cache_dir fast_moe_cold_start enabled_custom_ops "
        "disabled_custom_ops traced_files compilation_time encoder_compilation_time "
        "static_forward_context static_all_moe_layers",
        "PassConfig": "fuse_norm_quant fuse_act_quant fuse_attn_quant eliminate_noops "
        "fuse_allreduce_rms enable_qk_norm_rope_fusion fuse_rope_kvcache_cat_mla fuse_act_padding "
        "fuse_mla_dual_rms_norm fuse_rope_kvcache fuse_qk_norm_rope_kvcache "
        "rope_kvcache_fusion_max_token_num fi_allreduce_fusion_max_size_mb",
        "DynamicShapesConfig": "type evaluate_guards assume_32_bit_indexing",
    },
    "how files are found and read": {
        "ModelConfig": "allow_deprecated_quantization",
        "LoadConfig": "download_dir safetensors_load_strategy safetensors_prefetch_num_threads "
        "safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location",
        "MultiModalConfig": "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin",
        # After new weights a reset begins an epoch.
        "WeightTransferConfig": "backend",
    },
    "places, figures and logs": {
        "KVTransferConfig": "kv_connector engine_id kv_buffer_device kv_role kv_port "
        "kv_connector_extra_config kv_connector_module_path kv_load_failure_policy",
        "ECTransferConfig": "ec_connector engine_id ec_buffer_device ec_buffer_size ec_role ec_ip "
        "ec_port ec_connector_extra_config ec_connector_module_path mm_encoder_output_widths",
        "KVEventsConfig": "enable_kv_cache_events publisher endpoint replay_endpoint buffer_steps "
        "hwm max_queue_size topic",
        "ObservabilityConfig": "show_hidden_metrics_for_version otlp_traces_endpoint "
        "collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics "
        "kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics "
        "enable_layerwise_nvtx_tracing enable_mfu_metrics enable_mm_processor_stats "
        "enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose",
        "LoggingConfig": "log_level formatter configure_logging pylogging_config_file",
        "ProfilerConfig": "profiler torch_profiler_dir torch_profiler_activities "
        "proton_profiler_dir proton_context proton_data proton_backend proton_mode proton_hook "
        "proton_output_format proton_graph_attribution torch_profiler_with_stack "
        "torch_profiler_with_flops torch_profiler_use_gzip torch_profiler_dump_cuda_time_total "
        "torch_profiler_record_shapes torch_profiler_with_memory capture_torch_profiler "
        "detailed_trace_annotation ignore_frontend delay_iterations max_iterations "
        "warmup_iterations active_iterations wait_iterations",
        "WatchdogConfig": "timeout check_interval dump_dir",
        "VllmConfig": "instance_id shutdown_timeout",
    },
}


def left_out() -> dict[str, frozenset[str]]:
    """The fields that are left out, by class."""
    names: dict[str, set[str]] = {}
    for classes in LEFT_OUT.values():
        for kind, fields in classes.items():
            names.setdefault(kind, set()).update(fields.split())
    return {kind: frozenset(fields) for kind, fields in names.items()}
