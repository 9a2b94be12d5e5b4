"""The package of kernels imports without a GPU and names its backends."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_blocks.kernels import BlockTensors, copy_blocks, usable_backends
from kernel_cases import DEVICE, int32s
from process import printed_by_python

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import hybrid_blocks.kernels as kernels
assert not {missing!r} & {{name.partition(".")[0] for name in sys.modules}}
print(sorted(kernels.__all__)[-1])
"""


def run(code: str) -> str:
    """Run ``code`` on the checkout alone: no site packages' copy, no compiled core."""
    return printed_by_python("-c", code, env={"PYTHONPATH": str(ROOT / "python")}).strip()


def test_everything_imports_without_torch_triton_and_cuda() -> None:
    missing = {"torch", "triton", "cupy"}
    assert run(WITHOUT.format(missing=missing)) == "usable_backends"


def test_the_kernels_import_from_a_checkout_that_has_only_the_stubs(tmp_path: Path) -> None:
    package = tmp_path / "hybrid_blocks"
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "python" / "hybrid_blocks", package, ignore=built)
    assert (package / "_core" / "__init__.pyi").exists()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "import hybrid_blocks.kernels; print(hybrid_blocks.__file__)"
    assert run(code) == str(package / "__init__.py")


def test_another_missing_module_of_the_core_is_not_hidden() -> None:
    code = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "hybrid_blocks._core":
            raise ModuleNotFoundError("No module named 'needed'", name="needed")
sys.meta_path.insert(0, Broken())
try:
    import hybrid_blocks
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(code) == "needed"


def test_the_package_is_the_top_level_folder() -> None:
    link = ROOT / "python" / "hybrid_blocks" / "kernels"
    assert link.resolve() == ROOT / "kernels"


def test_on_the_cpu_naive_is_the_version_that_runs() -> None:
    assert usable_backends("cpu") == ("naive",)
    state = torch.arange(4.0).view(4, 1)
    copy_blocks(BlockTensors([state]), int32s(1), int32s(3))
    assert state.view(-1).tolist() == [0, 1, 2, 1]


def test_a_version_that_cannot_run_here_is_refused_with_the_reason() -> None:
    group = BlockTensors([torch.zeros(4, 1)])
    with pytest.raises(ValueError, match="backend 'cupy' cannot run on cpu: usable here are naive"):
        copy_blocks(group, int32s(1), int32s(3), backend="cupy")
    with pytest.raises(
        ValueError, match="backend is 'numba'; it must be one of naive, triton, cupy, copy_engine"
    ):
        copy_blocks(group, int32s(1), int32s(3), backend="numba")  # type: ignore[arg-type]


def test_a_missing_package_is_refused_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybrid_blocks.kernels.backend._installed", lambda _: False)
    with pytest.raises(ValueError, match=r"cupy is not installed; pip install '\.\[cupy\]' in the"):
        copy_blocks(BlockTensors([torch.zeros(4, 1)]), int32s(1), int32s(3), backend="cupy")


def test_cpu_tensors_take_no_stream() -> None:
    stream: Any = object() if DEVICE.type == "cpu" else torch.cuda.Stream(DEVICE)
    with pytest.raises(ValueError, match="CPU tensors take no stream"):
        copy_blocks(BlockTensors([torch.zeros(4, 1)]), int32s(1), int32s(3), stream=stream)
