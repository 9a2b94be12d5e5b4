"""CuPy has what the launcher calls, and compiles the sources; neither takes a device."""

from pathlib import Path
from unittest import mock

import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from cupy.cuda import compiler  # noqa: E402
from hybrid_blocks.kernels.driver import Driver  # noqa: E402
from hybrid_blocks.kernels.sources import OPTIONS, source_of  # noqa: E402

OPERATIONS = ("copy_blocks", "gather_scatter")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_cupy_compiles_the_sources(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    target = mock.patch.object(
        compiler, "_get_arch_for_options_for_nvrtc", return_value=("-arch=sm_90", "cubin")
    )
    with target, mock.patch.object(compiler.function, "Module") as module:
        compiler._compile_with_cache_cuda(source_of(operation), OPTIONS, "90")
    (code,) = module.return_value.load.call_args.args
    assert code.startswith(b"\x7fELF")


def test_cupys_functions_take_what_the_launcher_gives() -> None:
    driver = Driver()
    assert driver.upload_kind == 1
    runtime, error = cupy.cuda.runtime, cupy.cuda.runtime.CUDARuntimeError
    calls = (
        lambda: driver.upload(0, 0, 0, 0),
        lambda: driver.record(0, None),
        lambda: driver.is_capturing(0),
        lambda: driver.launch(0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0),
    )
    try:
        runtime.getDeviceCount()
    except error:
        for call in calls:
            with pytest.raises(RuntimeError):  # CUDA's error, not a TypeError of CuPy's
                call()
