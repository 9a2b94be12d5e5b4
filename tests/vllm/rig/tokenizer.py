"""A byte-level tokenizer of 256 tokens and a few special ones, made here rather than fetched."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# Ids follow the 256 bytes; the multi-modal configurations name them.
SPECIAL = (
    *("<pad>", "<bos>", "<eos>", "<image>", "<|image_pad|>", "<|video_pad|>"),
    *("<|vision_start|>", "<|vision_end|>"),
)


def make() -> Tokenizer:
    """Return the tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def write(folder: Path, *, max_length: int = 1 << 20) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``."""
    make().save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    settings |= {f"{it}_token": f"<{it}>" for it in ("pad", "bos", "eos")}
    settings |= {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
