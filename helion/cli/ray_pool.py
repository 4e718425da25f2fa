"""Workers on the machines of a Ray cluster: an actor for each GPU, or for each CPU if nothing is measured.

A binary is useful only on the machine that launches it. So each actor compiles in processes of its own machine, on the
CPUs that it reserved. Kernel files have the same paths on all machines.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .work import Report, Work, Worker
from .worker_pool import PoolWorker, WorkerDied

#: Seconds between polls for started actors, and the deadline for the first one.
_LOOK, _PATIENCE = 2.0, 60.0


class _Actor:
    def __init__(self, ray: Any, handle: Any, cpus: int) -> None:
        self.handle = handle
        self.reference: Any = None
        self._ray = ray
        self._cpus = cpus

    def begin(self, work: Work) -> None:
        own = {"workers": max(1, self._cpus), **work.options}
        self.reference = self.handle.run.remote(replace(work, options=own))

    def result(self) -> Report:
        try:
            report: Report = self._ray.get(self.reference)
        except self._ray.exceptions.RayTaskError as error:
            return Report(worked=False, message=str(error.cause))
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(type(error).__name__) from error
        return report


class RayPool:
    """A pool of actors in a Ray cluster.

    ``address`` is the argument of ``ray.init``. With ``measuring`` there is one actor per GPU, for all GPUs or for
    ``gpus`` of them, instead of one per CPU.
    """

    def __init__(self, address: str, measuring: bool, gpus: int | None = None) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise ValueError("--ray needs Ray: pip install 'helion-tiles[ray]'") from error
        self._ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="error")
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        there = sum(int(node.get("GPU" if measuring else "CPU", 0)) for node in nodes)
        count = gpus if measuring and gpus is not None else there
        if not 1 <= count <= there:
            self._ray.shutdown()
            kind = "GPU" if measuring else "CPU"
            asked = "" if gpus is None else f"--gpus {gpus}: "
            raise ValueError(f"{asked}the Ray cluster at {address} has {there or 'no'} {kind}")
        self._cpus = _cpus_of_a_gpu(nodes) if measuring else 1
        self._gpu = 1 if measuring else 0
        self._coming = [self._actor() for _ in range(count)]
        self._there: list[_Actor] = []
        self._since = time.monotonic()

    def _actor(self) -> tuple[_Actor, Any]:
        """Start an actor, and return it with a reference that resolves when it is ready."""
        options = {"num_cpus": self._cpus, "num_gpus": self._gpu, "max_restarts": 0}
        handle = self._ray.remote(**options)(Worker).remote()
        return _Actor(self._ray, handle, self._cpus), handle.__ray_ready__.remote()

    def new_workers(self) -> Sequence[PoolWorker]:
        fresh: list[_Actor] = []
        for actor, reference in list(self._coming):
            if not self._ray.wait([reference], timeout=0)[0]:
                continue
            self._coming.remove((actor, reference))
            try:
                self._ray.get(reference)
                fresh.append(actor)
            except self._ray.exceptions.RayError:
                self._coming.append(self._actor())
        self._there += fresh
        return fresh

    def ready(self, busy: Sequence[PoolWorker]) -> Sequence[PoolWorker]:
        by_reference = {worker.reference: worker for worker in busy if isinstance(worker, _Actor)}
        awaited = [*by_reference, *(reference for _, reference in self._coming)]
        done, _ = self._ray.wait(awaited, timeout=_LOOK)
        return [by_reference[reference] for reference in done if reference in by_reference]

    def drop(self, worker: PoolWorker) -> None:
        """Drop a lost worker. Another actor starts if there is a machine for it."""
        assert isinstance(worker, _Actor)
        self._there.remove(worker)
        self._coming.append(self._actor())
        self._since = time.monotonic()

    @property
    def is_gone(self) -> bool:
        return not self._there and time.monotonic() - self._since > _PATIENCE

    def close(self) -> None:
        self._ray.shutdown()


def _cpus_of_a_gpu(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return the CPUs that an actor can reserve on every machine with a GPU."""
    return min(int(node.get("CPU", 0) // node["GPU"]) for node in nodes if node.get("GPU", 0) >= 1)
