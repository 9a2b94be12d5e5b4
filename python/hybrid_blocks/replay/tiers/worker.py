"""A worker that copies nothing."""

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)


class InstantWorker(OffloadingWorker):
    """Every copy is done at once."""

    def __init__(self) -> None:
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copy from the device."""
        del src_spec, dst_spec
        self._finished.append(TransferResult(job_id=job_id, success=True))
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        """Copy to the device."""
        del src_spec, dst_spec, expedited
        self._finished.append(TransferResult(job_id=job_id, success=True))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the copies since this was last asked."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once."""

    def shutdown(self) -> None:
        """Do nothing."""
