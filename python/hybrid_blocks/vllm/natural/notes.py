"""The lines of an engine's log on its plan."""

from vllm.config import VllmConfig
from vllm.logger import init_logger

from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.units import human
from hybrid_blocks.vllm import notice

logger = init_logger("vllm.hybrid_blocks")


def planned(vllm_config: VllmConfig, plan: ArenaPlan, vllm: tuple[int, float] | None) -> None:
    """Say what the bytes hold, and what vLLM would log of them: its blocks and concurrency."""
    notice.refused(None)
    length = vllm_config.model_config.max_model_len
    theirs = f"{vllm[1]:.2f}x in {vllm[0]:,} blocks" if vllm else "nothing to compare"
    logger.info_once(
        "hybrid_blocks: %s hold %.2fx requests of %s tokens in %s slabs of %s; vLLM would log %s",
        human(plan.arena_bytes),
        capacity.concurrency(plan, length),
        f"{length:,}",
        f"{plan.num_slabs:,}",
        human(plan.slab_bytes),
        theirs,
    )
    for group in plan.groups:
        slots = plan.num_slots(group)
        if slots is not None:
            slots //= vllm_config.parallel_config.decode_context_parallel_size
        logger.info_once(
            "hybrid_blocks: group %s: %s layers, pool %s, %s blocks a slab%s",
            group.name,
            len(group.page_bytes),
            group.pool,
            f"{group.blocks_per_slab:,}",
            "" if slots is None else f", {slots:,} token slots",
        )
        if group.kept_pool is not None:
            logger.info_once(
                "hybrid_blocks: checkpoints of group %s: pool %s, %s a slab",
                group.name,
                group.kept_pool,
                group.kept_per_slab,
            )
    limit = vllm_config.scheduler_config.max_num_seqs
    if capacity.state_slots(plan) is not None and limit > plan.num_slabs:
        logger.warning_once(
            "hybrid_blocks: max_num_seqs %s exceeds the %s slabs, and vLLM refuses to capture full "
            "CUDA graphs then; set --max-num-seqs %s, give more memory, or HYBRID_BLOCKS=manager",
            f"{limit:,}",
            f"{plan.num_slabs:,}",
            plan.num_slabs,
        )
