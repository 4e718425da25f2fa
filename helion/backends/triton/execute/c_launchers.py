"""C launchers of Triton, built while kernels compile.

Triton before 3.7 writes a C function for each list of argument types. It runs the C compiler at the first launch, once
the kernel is compiled, and both take about as long. Here a thread builds the function earlier. Triton finds it on disk.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Sequence

import torch
import triton

from ...._support import logs
from ...._support.locks import new_lock
from ... import stub

_LOG = logs.logger(__name__)
_LOCK = new_lock()
#: Threads by the types of arguments and the folder of Triton's cache.
_BUILDS: dict[tuple[str, ...], threading.Thread] = {}


def are_needed() -> bool:
    """Return whether kernels are launched here, by a Triton that has a launcher for each list of types."""
    if stub.active() or torch.version.hip is not None or not torch.cuda.is_initialized():
        return False
    from triton.backends.nvidia import driver

    return hasattr(driver, "make_launcher")


def begin(argument_types: Sequence[str]) -> None:
    """Build the launcher for arguments of these types of Triton's in a thread, unless this process has."""
    key = _key(argument_types)
    with _LOCK:
        if key not in _BUILDS:
            _BUILDS[key] = threading.Thread(target=_build, args=(tuple(argument_types),), name="helion-launcher")
            _BUILDS[key].start()


def wait(argument_types: Sequence[str] | None = None) -> None:
    """Wait until the launcher for these types is built, if it was begun: a launch would build its own meanwhile.

    None waits for all.
    """
    wanted = tuple(_BUILDS) if argument_types is None else (_key(argument_types),)
    for thread in filter(None, map(_BUILDS.get, wanted)):
        if thread.is_alive():
            thread.join()


def _key(argument_types: Sequence[str]) -> tuple[str, ...]:
    return (str(triton.knobs.cache.dir), *argument_types)


def _build(argument_types: tuple[str, ...]) -> None:
    source = types.SimpleNamespace(signature=dict(enumerate(argument_types)))
    scratch = dict.fromkeys(f"{kind}_scratch_{what}" for kind in ("global", "profile") for what in ("size", "align"))
    metadata = types.SimpleNamespace(launch_cooperative_grid=False, launch_pdl=False, **scratch)
    try:
        triton.runtime.driver.active.launcher_cls(source, metadata)
    except Exception as error:  # the launch reports what is wrong
        _LOG.info("no launcher is built ahead: %s: %s", type(error).__name__, error)
