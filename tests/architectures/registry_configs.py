"""A configuration for each architecture of vLLM's registry that generates text.

Where transformers or vLLM has a class, its own defaults are taken and only ``model_type`` is
written. Where code of the publisher defines the class, the fields are written as published.
"""

import json
from pathlib import Path
from typing import Any

Fields = dict[str, Any]

PUBLISHED = Path(__file__).parent / "published.json"
"""Fields of architectures without a class, and ``model_type`` where the class has another name."""


def rows() -> dict[str, Fields]:
    """Return the configuration of every architecture."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - imports torch
    from vllm.model_executor.models import registry  # noqa: PLC0415

    types: dict[str, str] = {}
    for mapping in dir(modeling_auto):
        if mapping.endswith("MAPPING_NAMES"):
            for model_type, classes in getattr(modeling_auto, mapping).items():
                for name in classes if isinstance(classes, tuple) else (classes,):
                    types.setdefault(name, model_type)
    published = json.loads(PUBLISHED.read_bytes())
    names = {
        **registry._TEXT_GENERATION_MODELS,
        **registry._MULTIMODAL_MODELS,
        **registry._TRANSFORMERS_SUPPORTED_MODELS,
    }
    found: dict[str, Fields] = {}
    for name in sorted(names):
        fields = published.get(name) or {"model_type": types[name]}
        found[name] = {"architectures": [name], **fields}
    return found


def model_types() -> set[str]:
    """Return the type of every configuration."""
    return {str(fields["model_type"]) for fields in rows().values()}
