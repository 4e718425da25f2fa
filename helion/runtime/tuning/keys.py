"""Cache keys of tuned configs, and their configs in the space of this process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ... import exc
from ..._support.nested import tensors_in
from ...autotuner.cache.rows import Key
from ...backends import BACKENDS
from ...config import Config
from ..call.signature import any_device
from ..specialization.assumptions import with_code
from ..specialization.specialized import Specialized

#: Parts of an object's text that differ between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def is_simulated(args: Sequence[Any]) -> bool:
    """Return whether times of a kernel with these arguments are predicted: no tensor is on a GPU."""
    return not any(tensor.device.type == "cuda" for tensor in tensors_in(args))


def key_of(of: Specialized, args: Sequence[Any], tag: str = "", *, measured: bool | None = None) -> Key | None:
    """Return the key of an answer with ``measured`` or predicted times; the latter belong to no GPU.

    None decides by the device of the arguments.

    Returns None for a specialization that other processes cannot recognize: it depends on objects without a text of
    their own.
    """
    specialization = repr((with_code(any_device(of.key)), of.numbers))
    predicted = is_simulated(args) if measured is None else not measured
    if _ADDRESS.search(specialization):
        return None
    tensors = list(tensors_in(args))
    backend = of.analysis.backend.name
    versions = " ".join(f"{name} {version}" for name, version in BACKENDS[backend].toolchain.versions())
    return Key(
        kernel=of.kernel.name,
        source=_digest("".join((of.kernel.source, *of.analysis.call_facts.definitions))),
        specialization=specialization,
        target=f"{of.target.name} {of.target.num_sms} {backend}{' simulated' if predicted else ''}",
        versions=versions,
        space=of.analysis.space_key,
        dtypes=" ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
        shapes=tuple(tuple(map(int, tensor.shape)) for tensor in tensors if isinstance(tensor, torch.Tensor)),
        tag=tag,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def legal(of: Specialized, config: Config | Mapping[str, Any]) -> Config | None:
    """Normalize a config from elsewhere to the current space; None if it is not legal any more."""
    if isinstance(config, Config) and of.analysis.has_code(config):
        return config
    try:
        return of.analysis.space.normalize(config)
    except (exc.InvalidConfig, exc.NoFeasibleConfig):
        return None
