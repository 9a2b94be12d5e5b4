"""Pipeline stages: which layers a stage holds."""

from hybrid_blocks.model import Layer, Model, PlanError


def stages(
    model: Model, layers: tuple[Layer, ...], pp: int, partition: tuple[int, ...] | None = None
) -> tuple[tuple[Layer, ...], ...]:
    """Split layers by depth as vLLM does.

    ``partition`` counts the layers of each stage, as ``VLLM_PP_LAYER_PARTITION`` does. Without it,
    each stage gets ``num_layers // pp`` layers; what remains goes one each to the stages before the
    last, from the last but one backwards. Draft layers lie on the last stage.

    Raises:
        PlanError: more stages than layers, a partition of other stages or layers, or a stage whose
            layers keep nothing.

    """
    if pp > model.num_layers:
        raise PlanError(f"--pp {pp} exceeds the {model.num_layers} layers of {model.name}")
    sizes = [model.num_layers // pp] * pp
    for index in range(2, model.num_layers % pp + 2):
        sizes[-index] += 1
    if partition is not None:
        if len(partition) != pp or sum(partition) != model.num_layers or min(partition) < 1:
            raise PlanError(
                f"VLLM_PP_LAYER_PARTITION={','.join(map(str, partition))}: give {pp} numbers of "
                f"layers, one a stage, that sum up to the {model.num_layers} of {model.name}"
            )
        sizes = list(partition)
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    ends[-1] = max(layer.depth for layer in layers) + 1
    starts = [0, *ends[:-1]]
    cut = tuple(
        tuple(layer for layer in layers if start <= layer.depth < end)
        for start, end in zip(starts, ends, strict=True)
    )
    if not all(cut):
        raise PlanError(f"--pp {pp} leaves a stage of {model.name} without a cache")
    return cut
