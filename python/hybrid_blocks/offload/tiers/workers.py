"""Threads for transfers, which hold up neither each other's queue nor the end of the process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """Up to ``num_threads`` threads that run jobs in the order in which they come.

    They are daemons: a transfer that never ends, as on a disk that stands still, ends with the
    process. The standard library's pool would wait for it.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        """Start no thread before there is a job for it."""
        self._num_threads = num_threads
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` once a thread is free."""
        job: Future[T] = Future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - as an executor: the job has it
                job.set_exception(error)
            else:
                job.set_result(result)

        if len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        self._jobs.put(run)
        return job

    def close(self, patience: float) -> None:
        """End each thread once its jobs have ended, and wait ``patience`` seconds for that."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()
            del run  # what it holds may be closed while this thread waits for the next one
