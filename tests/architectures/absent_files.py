"""Stand-ins for tokenizers, processors and towers, which hold no cache.

A model looks some of them up next to its ``config.json`` while it is built.
"""

import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, Self

from absent_operators import Stream


class Anything:
    """Each of its attributes and answers is itself."""

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self


class Tokenizer(Stream):
    """Has each token that a model looks up, under the number 0."""

    vocab: ClassVar[defaultdict[str, int]] = defaultdict(int)
    instruct = Anything()

    @staticmethod
    def get_vocab() -> dict[str, int]:
        return Tokenizer.vocab

    @staticmethod
    def convert_tokens_to_ids(_: str) -> int:
        return 0

    @staticmethod
    def encode(*_: Any, **__: Any) -> list[int]:
        return [0]


class Processor(Anything):
    """Prepares no image: a model only asks for its scale."""

    do_rescale = do_normalize = True
    rescale_factor = 1 / 255
    image_mean = image_std = (0.5, 0.5, 0.5)


def _processor(*_: Any, **__: Any) -> Processor:
    return Processor()


OF_TOWERS = ("timm", "timm.layers", "timm.layers.pos_embed", "timm.models", "timm.models.regnet")
"""Modules of a package that towers alone are built with."""


def without_towers() -> None:
    """Build models without encoders of images and sound: those keep nothing between steps."""
    from transformers.utils.import_utils import is_timm_available  # noqa: PLC0415
    from vllm import tokenizers  # noqa: PLC0415
    from vllm.config import ModelConfig  # noqa: PLC0415
    from vllm.model_executor.models.interfaces import SupportsMultiModal  # noqa: PLC0415
    from vllm.multimodal.registry import MultiModalRegistry  # noqa: PLC0415
    from vllm.tokenizers import registry  # noqa: PLC0415

    mark = SupportsMultiModal._mark_tower_model

    @contextmanager
    def mark_and_forgive(*args: Any, **kwargs: Any) -> Iterator[None]:
        with mark(*args, **kwargs):
            try:
                yield
            except Exception:  # noqa: BLE001 - a tower that was not built keeps no cache either
                if "TRACE" in os.environ:
                    traceback.print_exc()

    SupportsMultiModal._mark_tower_model = mark_and_forgive  # type: ignore[method-assign]
    # With the language model alone every limit is 0; vLLM would ask a processor for their names.
    ModelConfig._supports_multimodal_inputs = lambda _: False  # type: ignore[assignment, method-assign]
    MultiModalRegistry.create_processor = _processor  # type: ignore[assignment, method-assign]
    for module in (registry, tokenizers):
        module.cached_tokenizer_from_config = lambda *_, **__: Tokenizer()  # type: ignore[attr-defined]
    if not is_timm_available():  # asked once: what stands in is not to be found later
        sys.modules.update({name: _module(name) for name in OF_TOWERS})


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module)["__getattr__"] = _attribute
    return module


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()
