"""Fields of vLLM's configuration classes that count, by class. A test holds that none is missing.

Those that do not are in ``offload/identity/same_bytes.toml``. A new field belongs to one of both.
"""

COUNT = {
    "HiSparseConfig": "device_buffer_size eager_host_mirror",
    "AttentionConfig": "use_trtllm_attention disable_flashinfer_q_quantization mla_prefill_backend "
    "use_prefill_query_quantization trtllm_ragged_backend indexer_kv_dtype indexer_sparse_logits "
    "hisparse_config use_non_causal sparse_mla_force_mqa",
    "CacheConfig": "cache_dtype is_attention_free kv_cache_dtype_skip_layers mamba_cache_dtype "
    "mamba_ssm_cache_dtype mamba_cache_mode replayssm_buffer_len use_replayssm use_kda_recoverssm "
    "kv_sharing_fast_prefill swa_bounded_replay",
    "CompilationConfig": "inductor_passes pass_config dynamic_shapes_config",
    "DiffusionConfig": "canvas_length max_denoising_steps",
    "KernelConfig": "ir_op_priority moe_backend sparse_indexer_topk_backend linear_backend "
    "linear_backend_per_quant",
    "KVTransferConfig": "enable_permute_local_kv",
    "LoadConfig": "load_format model_loader_extra_config ignore_patterns",
    "LoRAConfig": "lora_dtype target_modules default_mm_loras enable_tower_connector_lora "
    "enable_mixed_moe_lora_format enable_moe_shared_loras",
    "MambaConfig": "backend enable_stochastic_rounding stochastic_rounding_philox_rounds "
    "ssu_algorithm",
    "ModelConfig": "model model_weights tokenizer runner convert tokenizer_mode trust_remote_code "
    "dtype hf_config is_submodel_config word_embeddings_untied_by_checkpoint code_revision "
    "max_model_len quantization quantization_config disable_sliding_window "
    "config_format model_class_overrides model_impl pooler_config multimodal_config",
    "MultiModalConfig": "language_model_only media_io_kwargs mm_processor_kwargs "
    "mm_device_do_normalize mm_encoder_only mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
    "video_pruning_rate video_pruning_method allow_missing_mm_embeddings",
    "OffloadConfig": "uva prefetch",
    "ParallelConfig": "eplb_config worker_cls worker_extension_cls fault_tolerance_config",
    "QuantSpec": "weight activation",
    "QuantizationConfigArgs": "linear moe ignore targets",
    "SpeculativeConfig": "num_speculative_tokens model method quantization moe_backend "
    "kv_cache_dtype code_revision index_share_for_mtp_iteration "
    "draft_lm_head_quantization use_heterogeneous_vocab parallel_drafting draft_model_config "
    "draft_load_config dspark_draft_topk xpress_topc",
    "VllmConfig": "model_config cache_config parallel_config scheduler_config device_config "
    "load_config offload_config attention_config aux_output_config engram_config mamba_config "
    "kernel_config lora_config speculative_config watermark_config diffusion_config "
    "structured_outputs_config observability_config logging_config compilation_config "
    "profiler_config kv_transfer_config kv_events_config ec_transfer_config ec_manager_config "
    "reasoning_config additional_config weight_transfer_config watchdog_config",
}

NOT_OF_AN_ENGINE = (
    *("Range", "SpeechToTextConfig", "SpeechToTextParams", "ModelArchitectureConfig"),
    *("BaseDummyOptions", "VideoDummyOptions", "ImageDummyOptions", "AudioDummyOptions"),
)
"""Classes that no ``VllmConfig`` holds, or only in what is made of its other fields."""

ENVIRONMENT = """
B12X_MOE_FP4_FORCE_A16 BATCH_INVARIANT BLOCKSCALE_FP8_GEMM_FLASHINFER CPU_ATTN_SPLIT_KV
CPU_INT4_W4A8 DEEPEPLL_NVFP4_DISPATCH DISABLED_KERNELS DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION
ENABLE_FLA_PACKED_RECURRENT_DECODE ENABLE_HPC_OPS FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE
FLOAT32_MATMUL_PRECISION GDN_DECODE_KERNEL HUMMING_INPUT_QUANT_CONFIG HUMMING_MOE_GEMM_TYPE
HUMMING_ONLINE_QUANT_CONFIG HUMMING_USE_F16_ACCUM KV_CACHE_LAYOUT MARLIN_INPUT_DTYPE
MARLIN_USE_ATOMIC_ADD MAX_TOKENS_PER_EXPERT_FP4_MOE MEDIA_CONNECTOR MLA_DISABLE
MODEL_REDIRECT_PATH MOE_ROUTING_SIMULATION_STRATEGY MOE_SKIP_PADDING MOE_USE_DEEP_GEMM
MXFP4_EMULATION_DEQUANT_AT_LOAD MXFP8_EMULATION_DEQUANT_AT_LOAD PLUGINS
ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS ROCM_AITER_MLA_DCP_VERIFY ROCM_MONO_DECODE
ROCM_USE_AITER_FP4_ASM_GEMM ROCM_AITER_MLA_ASM_PADDING ROCM_AITER_MOE_DISPATCH_POLICY
ROCM_FP8_MFMA_PAGE_ATTN ROCM_FP8_PADDING
ROCM_MOE_PADDING ROCM_MUSE_MOE_ONLINE_QUANT ROCM_MUSE_MOE_REDUCE_DTYPE
ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 ROCM_QUICK_REDUCE_QUANTIZATION ROCM_SHUFFLE_KV_CACHE_LAYOUT
ROCM_USE_AITER ROCM_USE_AITER_FP4BMM ROCM_USE_AITER_FP8BMM ROCM_USE_AITER_FUSION_SHARED_EXPERTS
ROCM_USE_AITER_LINEAR ROCM_USE_AITER_LINEAR_HIPBMM ROCM_USE_AITER_MHA ROCM_USE_AITER_MLA
ROCM_USE_AITER_MOE ROCM_USE_AITER_MOE_A4W4_DSV4 ROCM_USE_AITER_MOE_SITUV2 ROCM_USE_AITER_RMSNORM
ROCM_USE_AITER_TRITON_GEMM ROCM_USE_AITER_TRITON_ROPE ROCM_USE_AITER_TRITON_SPARSE_MLA
ROCM_USE_AITER_UNIFIED_ATTENTION ROCM_USE_SKINNY_GEMM SSM_CONV_STATE_LAYOUT TEST_FORCE_LOAD_FORMAT
TRITON_USE_TD USE_DEEP_GEMM USE_DEEP_GEMM_E8M0 USE_DEEP_GEMM_TMA_ALIGNED_SCALES
USE_FLASHINFER_MOE_INT4 USE_FUSED_MOE_GROUPED_TOPK USE_HW_AGNOSTIC USE_OINK_OPS USE_TRITON_AWQ
USE_V2_MODEL_RUNNER VIDEO_LOADER_BACKEND XLA_USE_SPMD XPU_FORCE_N_CONTIG_WEIGHT
XPU_INC_WNA16_BACKEND ZENTORCH_WEIGHT_PREPACK
"""
"""Environment variables that count, without vLLM's prefix."""
