"""How much of the device a launch takes."""

# A warp of the CUDA kernels moves one unit at a time: 8 vectors of 16 bytes in each lane.
CUDA_UNIT_BYTES = 32 * 8 * 16
WARP = 32
FULL_THREADS = 256
# A launch on few SMs runs one block of 32 warps on each: 128 KiB in flight an SM.
FEW_SM_THREADS = 1024

TRITON_UNIT_BYTES = 8192
TRITON_FEW_SM_UNITS = 8  # a program of 32 warps moves so many at a time: 64 KiB in flight an SM

MAX_GRID = 2**31 - 1


def cuda_grid(num_units: int, max_sms: int | None) -> tuple[int, int]:
    """Return (blocks, threads a block) for one warp a unit.

    Without ``max_sms`` there is a warp for every unit and the hardware balances them. With it the
    grid has one block for each SM that may be used, and its warps stride over the units: blocks
    are placed on idle SMs first, so the rest of the device stays free.
    """
    if max_sms is None:
        warps = FULL_THREADS // WARP
        return min(-(-num_units // warps), MAX_GRID), FULL_THREADS
    warps = FEW_SM_THREADS // WARP
    return min(max_sms, -(-num_units // warps)), FEW_SM_THREADS


def check_max_sms(max_sms: int | None) -> None:
    """Raise ``ValueError`` unless ``max_sms`` is None or positive."""
    if max_sms is not None and max_sms < 1:
        raise ValueError(f"max_sms is {max_sms}; use at least 1, or None for the whole device")
