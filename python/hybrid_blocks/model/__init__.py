"""Models: from ``config.json`` to the caches of each layer and their bytes on one rank."""

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.load import from_config, load_layers, load_model
from hybrid_blocks.model.model import Layer, Model
from hybrid_blocks.model.rank import Rank

__all__ = ["Layer", "Model", "PlanError", "Rank", "from_config", "load_layers", "load_model"]
