"""The content of a model's files names its stored bytes, wherever the files come from."""

import json
import pickle
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from configurations import MODEL, configuration, write
from hub_cache import add_commit
from hybrid_blocks.offload import identity, spec
from hybrid_blocks.offload.identity import Identity, fingerprint, identity_of, model_files
from hybrid_blocks.offload.identity.adapters import Adapters, hold_content
from hybrid_blocks.offload.options import Options
from hybrid_blocks.offload.region import Header
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.offload.tiers import TiersBelow
from safetensors.torch import save
from scheduled import BYTES, GROUPS
from vllm import envs
from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader import LoadFormats
from vllm.model_executor.model_loader.tensorizer import TensorizerConfig
from vllm.transformers_utils.repo_utils import resolve_revision
from vllm.v1.core import kv_cache_utils

NAME = "makers/tiny"
# Without a type vLLM asks the hub for that of the weights, twice.
CONFIG = json.dumps(MODEL | {"dtype": "float16"}).encode()
OLD, NEW = (save({"w": torch.tensor([number])}) for number in (1, 2))
FILES = {"config.json": CONFIG, "model.safetensors": OLD}
NEW_FILES = FILES | {"model.safetensors": NEW}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of a hub that cannot be reached."""
    assert huggingface_hub.constants.HF_HUB_OFFLINE, "the tests run with HF_HUB_OFFLINE=1"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def known(name: str = NAME, **changes: Any) -> str:
    """Return the digest of an engine of whose content nothing is unknown."""
    found = identity_of(configuration(name, **changes))
    assert found.unknown == ()
    return found.digest


def test_a_branch_that_moves_to_other_weights_is_another_model(cache: Path) -> None:
    add_commit(cache, NAME, FILES)
    old = known()
    assert known() == old
    add_commit(cache, NAME, NEW_FILES)
    assert known() != old
    add_commit(cache, NAME, FILES | {"code.py": b"y = 2 * x"})
    assert known() != old
    add_commit(cache, NAME, FILES | {"README.md": b"the same weights", "model.onnx": b"1"})
    assert known() == old


def test_a_branch_that_moves_after_the_start_changes_nothing(cache: Path) -> None:
    add_commit(cache, NAME, FILES)
    config = configuration(NAME)
    before = identity_of(config)
    add_commit(cache, NAME, NEW_FILES)
    assert identity_of(config) == before, "the weights are loaded"
    # A worker gets the configuration so.
    assert identity_of(pickle.loads(pickle.dumps(config))) == before


def test_a_commit_is_the_same_by_its_branch_its_hash_and_its_folder(cache: Path) -> None:
    commit = add_commit(cache, NAME, FILES)
    assert known() == known(revision="main") == known(revision=commit)
    folder = cache / "models--makers--tiny" / "snapshots" / commit
    assert known(str(folder)) == known()
    add_commit(cache, NAME, NEW_FILES, branch="next")
    assert known(revision="next") != known()


def test_one_byte_of_large_weights_that_no_sample_reads_is_seen(cache: Path) -> None:
    large = torch.zeros(fingerprint._SMALL + 8192, dtype=torch.uint8)
    digests = set()
    for byte in (0, 1):
        large[-5000] = byte
        commit = add_commit(cache, NAME, FILES | {"model.safetensors": save({"w": large})})
        digests.add(known())
    assert len(digests) == 2
    blob = cache / "models--makers--tiny" / "snapshots" / commit / "model.safetensors"
    blob.write_bytes(save({"w": large + 1}))
    assert blob.is_symlink()
    assert known() not in digests, "a blob that was written over is another one"


def test_weights_may_lie_in_a_cache_of_their_own(cache: Path, tmp_path: Path) -> None:
    load = {"download_dir": str(tmp_path / "weights")}
    digests = set()
    for weights in (OLD, NEW):
        files = {"config.json": CONFIG, "model.safetensors": weights}
        commit = add_commit(cache, NAME, files)
        # The hub's own cache has the configuration alone, as vLLM leaves it.
        snapshot = cache / "models--makers--tiny" / "snapshots" / commit
        (snapshot / "model.safetensors").unlink()
        digests.add(known())
        assert add_commit(tmp_path / "weights", NAME, files) == commit
        digests.add(known(load=load))
    assert len(digests) == 4


def test_files_that_are_no_links_count_with_their_commit(cache: Path) -> None:
    add_commit(cache, NAME, FILES, linked=False)
    plain = known()
    add_commit(cache, NAME, FILES | {"README.md": b"another commit"}, linked=False)
    assert known() != plain, "samples may miss a change of large files"


@pytest.mark.parametrize("load_format", ["auto", "mistral", "npcache", "pt", "runai_streamer"])
def test_every_format_of_a_hubs_files_is_known_by_content(cache: Path, load_format: str) -> None:
    names = {"mistral": "consolidated.safetensors", "npcache": "a.bin", "pt": "a.pt"}
    weights = names.get(load_format, "model.safetensors")
    params = {"params.json": json.dumps(MISTRAL).encode()} if load_format == "mistral" else {}
    config = {"config_format": "mistral"} if load_format == "mistral" else {}
    digests = set()
    for content in (OLD, NEW):
        add_commit(cache, NAME, {"config.json": CONFIG, weights: content} | params)
        digests.add(known(load={"load_format": load_format}, **config))
    assert len(digests) == 2


MISTRAL = {
    "dim": 64,
    "n_layers": 2,
    "head_dim": 16,
    "hidden_dim": 64,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


def unknown(config: VllmConfig) -> tuple[str, ...]:
    return identity_of(config).unknown


def test_models_of_modelscope_and_names_at_no_commit_are_unknown(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_commit(cache, NAME, FILES)
    config = configuration(NAME)
    resolved = config.model_config.revision
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    for revision, named in [(None, NAME), ("main", f"{NAME} at main")]:
        config.model_config.revision = resolve_revision(NAME, revision)
        assert unknown(config) == (named,)
    config.model_config.revision = resolved
    for name in ("https://host/model.gguf", "makers/tiny:Q4_K_M", "makers/other"):
        # The last one has a revision that was resolved for another model.
        config.model_config.model = config.model_config.tokenizer = name
        assert unknown(config) == (f"{name} at main",)


def test_weights_behind_an_address_are_unknown(tmp_path: Path) -> None:
    config = configuration(write(tmp_path / "json"))
    config.model_config.model_weights = "s3://bucket/tiny"
    assert unknown(config) == ("s3://bucket/tiny",)
    config.model_config.model_weights = write(tmp_path / "weights")
    before = identity_of(config)
    assert before.unknown == ()
    Path(config.model_config.model_weights, "model.safetensors").write_bytes(b"new")
    assert identity_of(config).digest != before.digest


def test_every_format_of_weights_is_read_made_or_unknown(tmp_path: Path) -> None:
    config = configuration(write(tmp_path / "model"))
    found = {}
    for name in (*typing.get_args(LoadFormats), "of_a_plugin"):
        config.load_config.load_format = name
        found[name] = unknown(config)
    elsewhere = {"ipc_cache", "modelexpress", "of_a_plugin"}
    assert {name for name, it in found.items() if it} == elsewhere
    assert found["ipc_cache"] == ("weights by ipc_cache",)
    assert set(typing.get_args(LoadFormats)) - elsewhere - {"dummy"} <= {*identity._READ_FORMATS}


@pytest.mark.parametrize("is_object", [False, True])
@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"tensorizer_dir": "{}"}, "model.tensors"),
        ({"tensorizer_uri": "{}/own.tensors"}, "own.tensors"),
        ({"tensorizer_uri": "{}/model-%03d.tensors"}, "model-001.tensors"),
    ],
)
def test_tensors_of_tensorizer_are_known_by_content(
    tmp_path: Path, options: dict[str, str], file: str, *, is_object: bool
) -> None:
    tensors = tmp_path / "tensors"
    tensors.mkdir()
    for name in ("model.tensors", "own.tensors", "model-000.tensors", "model-001.tensors"):
        (tensors / name).write_bytes(b"old")
    places: dict[str, Any] = {it: place.format(tensors) for it, place in options.items()}
    # The command line puts the options into a field of their own as well, beside the model's name.
    nested = {"tensorizer_config": {"tensorizer_dir": NAME} | places, **places}
    extra: Any = TensorizerConfig(**places) if is_object else nested
    load = {"load_format": "tensorizer", "model_loader_extra_config": extra}
    folder = write(tmp_path / "model")
    old = known(folder, load=load)
    (tensors / file).write_bytes(b"new")
    assert known(folder, load=load) != old
    if is_object and "%" in str(places):
        # The loader of a rank puts its number in.
        extra.tensorizer_uri = extra.tensorizer_uri % 0
        shards = [known(folder, load=load)]
        (tensors / file).write_bytes(b"newer")
        assert known(folder, load=load) != shards[0]


@pytest.mark.parametrize("place", ["s3://bucket/model.tensors", "https://host/m-%03d.tensors"])
def test_tensors_behind_an_address_are_unknown_and_keys_to_them_do_not_count(
    tmp_path: Path, place: str
) -> None:
    found: set[Identity] = set()
    for key in ("yours", "mine"):
        extra = {"tensorizer_uri": place, "s3_access_key_id": key}
        load = {"load_format": "tensorizer", "model_loader_extra_config": extra}
        found.add(identity_of(configuration(write(tmp_path / "model"), load=load)))
    assert [it.unknown for it in found] == [(place,)]


def test_shards_outside_of_the_models_folder_are_unknown(tmp_path: Path) -> None:
    extra = {"pattern": "/elsewhere/model-rank-{rank}-part-{part}.safetensors"}
    load = {"load_format": "sharded_state", "model_loader_extra_config": extra}
    folder = write(tmp_path / "model")
    assert unknown(configuration(folder, load=load)) == (extra["pattern"],)
    extra["pattern"] = "model-{rank}-{part}.safetensors"
    assert unknown(configuration(folder, load=load)) == ()


def test_a_drafter_of_a_hub_is_known_by_its_own_content(cache: Path, tmp_path: Path) -> None:
    def drafted(files: dict[str, bytes]) -> str:
        add_commit(cache, "makers/draft", files)
        config = configuration(write(tmp_path / "model"))
        draft: Any = object.__new__(SpeculativeConfig)
        vars(draft).update(
            target_model_config=config.model_config,
            model="makers/draft",
            draft_model_config=ModelConfig(model="makers/draft", runner="draft"),
        )
        object.__setattr__(config, "speculative_config", draft)
        found = identity_of(config)
        assert found.unknown == ()
        return found.digest

    assert drafted(FILES) != drafted(NEW_FILES)
    assert drafted(FILES) == drafted(FILES)


def test_a_tokenizer_counts_where_the_model_reads_it(cache: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    digests = {"text": set[str](), "n-grams": set[str]()}
    for words in (b"a", b"b"):
        add_commit(cache, "makers/words", {"tokenizer.json": words, "config.json": CONFIG})
        config = configuration(folder, tokenizer="makers/words")
        digests["text"].add(identity_of(config).digest)
        config.model_config.hf_text_config.engram_layer_ids = [1]
        digests["n-grams"].add(identity_of(config).digest)
    assert {name: len(it) for name, it in digests.items()} == {"text": 1, "n-grams": 2}


def test_a_tower_that_a_model_fetches_by_itself_is_unknown(tmp_path: Path) -> None:
    config = configuration(write(tmp_path / "model"))
    config.model_config.hf_config.audio_model_id = "makers/ear"
    assert unknown(config) == ("makers/ear",)
    config.model_config.hf_config.audio_model_id = write(tmp_path / "ear")
    assert unknown(config) == ()


def test_code_of_another_model_is_unknown_unless_its_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "model")
    Path(folder, "preprocessor_config.json").write_text(
        json.dumps({"auto_map": {"AutoImageProcessor": "makers/eye--code.Reader"}})
    )
    config = configuration(folder)
    model = config.model_config
    monkeypatch.setattr(model, "trust_remote_code", True)
    model.hf_config.auto_map = {"AutoConfig": "makers/base--code.Config"}
    assert unknown(config) == (), "what it reads is in the configuration"
    model.hf_config.auto_map["AutoModel"] = "makers/base--code.Model"
    assert unknown(config) == (), "vLLM's own code computes"
    monkeypatch.setattr(type(model), "using_transformers_backend", lambda _: True)
    assert unknown(config) == ("code of makers/base",)
    monkeypatch.setattr(model, "multimodal_config", SimpleNamespace())
    assert unknown(config) == ("code of makers/base", "code of makers/eye")
    model.code_revision = "main"
    assert unknown(config)[0] == f"code of {folder} at main"
    model.code_revision = "0123456789" * 4
    assert unknown(config) == ()


def test_versions_of_code_that_computes_beside_vllms_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(write(tmp_path / "model"))
    before = identity_of(config)
    monkeypatch.setattr(transformers, "__version__", "5.99.0")
    assert identity_of(config) == before
    monkeypatch.setattr(ModelConfig, "using_transformers_backend", lambda _: True)
    assert identity_of(config) != before
    monkeypatch.undo()
    assert model_files.plugins() == []

    def plugin(version: str) -> Any:
        named = SimpleNamespace(name="makers-plugin", version=version)
        return lambda group: [SimpleNamespace(group=group, name="makers", dist=named)]

    found = set()
    for version in ("1.0", "1.1"):
        monkeypatch.setattr(model_files, "entry_points", plugin(version))
        found.add(identity_of(config))
    assert len({before, *found}) == 3
    monkeypatch.setitem(envs.environment_variables, "VLLM_PLUGINS", list)
    assert model_files.plugins() == []


def test_unknown_content_switches_disk_and_objects_off_unless_a_version_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(write(tmp_path / "model"))
    config.model_config.model_weights = "s3://bucket/tiny"
    layout = spec._digest(config)
    header = Header(rank_bytes=[*BYTES.values()], layout=layout)
    region: Any = SimpleNamespace(bytes=np.zeros(1 << 20, dtype=np.uint8))
    told: list[str] = []
    warn = SimpleNamespace(warning=lambda text, *values: told.append(text % values))
    monkeypatch.setattr(spec, "logger", warn)

    def tiers(version: str) -> TiersBelow:
        made: Any = object.__new__(HybridOffloadingSpec)
        options = {"host": "1MiB", "disk": f"{tmp_path}/disk:1GiB", "model_version": version}
        made._options = Options.parse(options | {"objects": f"file://{tmp_path}/objects"})
        made.config = SimpleNamespace(
            model=SimpleNamespace(dtype="float16"),
            kv_cache_layout="NHD",
            parallel=SimpleNamespace(data_parallel_size=1),
        )
        below: TiersBelow = made._below(GROUPS, header, region)
        return below

    assert not any(tiers(""))
    (line,) = told
    for part in ("Disk and objects are off", "s3://bucket/tiny", "model_version"):
        assert part in line
    for version in ("monday", "tuesday"):
        below = tiers(version)
        assert below.disk is not None
        assert below.objects is not None
        below.close()
    assert len(told) == 1
    assert len(list((tmp_path / "disk").iterdir())) == 2, "each version has chunks of its own"


def adapter(path: Path | str, number: int = 1, **options: Any) -> Any:
    lora = LoRARequest(lora_name="a", lora_int_id=number, lora_path=str(path), **options)
    return SimpleNamespace(request_id=f"{number} {path}", lora_request=lora)


def contents(*requests: Any) -> list[str]:
    """Return what an engine that starts now takes the requests' adapters for."""
    own = Adapters()
    return [own.content_of(it) for it in requests]


def test_an_adapter_is_known_by_its_content_after_a_restart(tmp_path: Path) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"old")
    (old,) = contents(adapter(tmp_path))
    assert contents(adapter(tmp_path)) == [old]
    weights.write_bytes(b"new")
    (new,) = contents(adapter(tmp_path))
    assert new != old
    weights.write_bytes(b"old")
    assert contents(adapter(tmp_path), adapter(tmp_path, 2)) == [old, old]


def test_an_adapter_of_a_hub_or_written_over_is_no_other_processs(tmp_path: Path) -> None:
    name = adapter("makers/adapter")
    one, other = contents(name, name), contents(name)
    assert one[0] == one[1] != other[0]
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"old")
    serving = Adapters()
    old = serving.content_of(adapter(tmp_path))
    weights.write_bytes(b"newer")
    # Whether a worker has read the new file, no scheduler knows.
    assert serving.content_of(name) not in one
    over = serving.content_of(adapter(tmp_path))
    assert over not in (old, *contents(adapter(tmp_path)))
    serving.note_load(adapter(tmp_path, load_inplace=True).lora_request)
    serving.content_of(name)
    assert [serving.content_of(adapter(tmp_path))] == contents(adapter(tmp_path))


def test_digests_of_requests_hold_the_content_of_their_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine import core  # noqa: PLC0415 - the scheduler's process has imported it

    monkeypatch.setattr(kv_cache_utils, *_original("_gen_lora_extra_hash_keys"))
    monkeypatch.setattr(core.EngineCore, "add_lora", core.EngineCore.add_lora)
    hold_content()
    hold_content()
    (tmp_path / "adapter_model.safetensors").write_bytes(b"old")
    (content,) = contents(adapter(tmp_path))
    keys: Any = kv_cache_utils._gen_lora_extra_hash_keys
    assert keys(adapter(tmp_path)) == [("lora", "a", str(tmp_path), content)]
    assert keys(SimpleNamespace(request_id="base", lora_request=None)) == []
    loads: list[Any] = []
    engine: Any = SimpleNamespace(model_executor=SimpleNamespace(add_lora=loads.append))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"newer")
    core.EngineCore.add_lora(engine, adapter(tmp_path, load_inplace=True).lora_request)
    assert len(loads) == 1
    keys(adapter("makers/adapter"))
    assert keys(adapter(tmp_path)) == [("lora", "a", str(tmp_path), *contents(adapter(tmp_path)))]


def _original(name: str) -> tuple[str, Any]:
    found = getattr(kv_cache_utils, name)
    return name, getattr(found, "__wrapped__", found)
