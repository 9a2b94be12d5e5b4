"""Prints which class vLLM takes for the head of each architecture, as JSON; null for none."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

sys.path += [str(Path(__file__).parents[1] / "plan")]

import registry_configs
import registry_oracle
from vllm.config.speculative import MTPModelTypes, SpeculativeConfig
from vllm.transformers_utils.config import get_config


def head_class(fields: dict[str, Any]) -> str | None:
    """Return the class of a head that a configuration with one gets."""
    registry_oracle.register(fields)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        own: Any = {"hf_overrides_fn": SpeculativeConfig.hf_config_override}
        config = get_config(folder, trust_remote_code=False, config_format="hf", **own)
    is_head = config.model_type in get_args(MTPModelTypes)
    return next(iter(config.architectures or ()), None) if is_head else None


def main() -> None:
    """Ask for all architectures."""
    found = {}
    for name, fields in registry_configs.rows().items():
        try:
            found[name] = head_class(registry_configs.with_head(name, fields))
        except Exception as error:  # noqa: BLE001 - classes refuse in many ways
            found[name] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
