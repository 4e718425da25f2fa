"""GPUs by name, and the live GPU, for which the driver's values are preferred to those of the table."""

from __future__ import annotations

import dataclasses
import functools
import re

from .. import exc
from .records import Target
from .rows import ROWS


class UnknownTargetName(exc.UnknownTarget, ValueError):
    """Error for a name of no GPU in the table, nor of a later relative of one."""


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


_BY_NAME: dict[str, Target] = {_squeeze(name): row for names, row in ROWS for name in names}


def known_targets() -> tuple[str, ...]:
    """List one name for each row of the table, in its order, each accepted by ``target``."""
    return tuple(names[0] for names, _ in ROWS)


def _age(name: str) -> tuple[str, int] | None:
    """Parse a well-formed architecture name without punctuation into (family, age); None for anything else.

    A later member of a family runs what an earlier one does: ``sm_*`` is one family, ``gfx9*`` another, and so on.
    """
    if match := re.fullmatch(r"sm(\d{2,3})", name):
        return "sm", int(match[1])
    if match := re.fullmatch(r"gfx(\d{1,2})([0-9a-f]{2})", name):
        return f"gfx{match[1]}", int(match[2], 16)
    return None


@functools.lru_cache(maxsize=256)
def _lookup(name: str) -> Target:
    plain = _squeeze(name.split(":")[0])
    plain = re.sub(r"^(sm\d{2,3})[af]$", r"\1", plain)  # sm_90a and sm_100f name code for sm_90 and sm_100 alone
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    age = _age(plain)
    if age is not None:
        older = [(a, row) for _, row in ROWS if (a := _age(_squeeze(row.name))) and a[0] == age[0] and a < age]
        if older:
            relative = max(older, key=lambda pair: pair[0])[1]
            return _renamed(relative, plain, age[1])
    known = ", ".join(name for names, _ in ROWS for name in names)
    reason = "has no older relative in the table" if age is not None else "names no GPU"
    raise UnknownTargetName(f"{name!r} {reason}; use one of {known}, or a later member of one of these families.")


def _renamed(relative: Target, plain: str, age: int) -> Target:
    if relative.kind == "cuda":
        name = f"sm_{age}"
        return dataclasses.replace(relative, name=name, device=f"as {relative.device}", capability=age, arch=age)
    return dataclasses.replace(relative, name=plain, device=f"as {relative.device}", arch=plain)


#: Target of kernels on tensors that are not on a GPU, unless ``HELION_TARGET`` is set.
DEFAULT_TARGET = "sm_90"


def target(name: str | Target) -> Target:
    """Look up a GPU by name; a ``Target`` is returned as it is. Needs no GPU.

    `name` is an architecture (``sm_90``, ``sm90``, ``sm_90a``, ``gfx942:sramecc+:xnack-``, ``xpu``) or a device
    (``h100``, ``h200``, ``mi300x`` ...). Case and punctuation do not matter. An architecture gives its most common
    device. An unknown architecture that is later than a known one (``sm_121``) gets the numbers of its nearest older
    relative, under its own name.

    Raises:
        exc.UnknownTarget: the name is none of these; it is a ``ValueError`` too.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise UnknownTargetName(f"a target is a name such as 'sm_90' or a helion.hardware.Target, got {name!r}.")
    return _lookup(name)


def from_driver(properties: object) -> Target:
    """Return the target for a GPU; `properties` are those of ``torch.cuda.get_device_properties(i)``.

    The row is chosen by architecture and, among devices that share it, by the device's name. The driver's counts of SMs
    and registers, its shared memory, L2 and memory clock then replace the row's; matrix and fp32 rates are scaled by
    the number of SMs. Attributes that are absent or 0 leave the row's number unchanged.
    """

    def number(attribute: str, otherwise: int) -> int:
        value = getattr(properties, attribute, 0)
        return int(value) if value else otherwise

    device = str(getattr(properties, "name", ""))
    architecture = str(getattr(properties, "gcnArchName", ""))
    if not architecture.startswith("gfx"):
        architecture = f"sm_{number('major', 0)}{number('minor', 0)}"
    row = target(architecture)
    relatives = [(name, r) for names, r in ROWS for name in names if r.name == row.name and name in _squeeze(device)]
    if relatives:
        row = max(relatives, key=lambda pair: len(pair[0]))[1]

    num_sms = number("multi_processor_count", row.num_sms)
    speed = num_sms / row.num_sms
    warp_size = number("warp_size", row.warp_size)
    row = dataclasses.replace(
        row,
        device=device or row.device,
        num_sms=num_sms,
        xcds=max(1, round(row.xcds * speed)),
        warp_size=warp_size,
        l2_bytes=number("L2_cache_size", row.l2_bytes),
        fp32_tflops=row.fp32_tflops * speed,
        matrix_tflops=tuple((name, rate * speed) for name, rate in row.matrix_tflops),
    )
    if row.kind != "cuda":
        # HIP reports shared memory, registers and the memory clock by rules of its own (half of MI300X's data rate).
        return row
    # Two transfers per clock; kHz and bits.
    bandwidth = 2 * number("memory_clock_rate", 0) * 1e3 * number("memory_bus_width", 0) / 8 / 1e9
    return dataclasses.replace(
        row,
        registers_per_sm=number("regs_per_multiprocessor", row.registers_per_sm),
        smem_per_sm_bytes=number("shared_memory_per_multiprocessor", row.smem_per_sm_bytes),
        smem_per_block_bytes=number("shared_memory_per_block_optin", row.smem_per_block_bytes),
        max_warps_per_sm=number("max_threads_per_multi_processor", row.max_warps_per_sm * warp_size) // warp_size,
        bandwidth_gb_per_s=bandwidth or row.bandwidth_gb_per_s,
    )


@functools.cache
def from_device_properties(index: int) -> Target:
    """Return the live GPU with CUDA (or HIP) device number `index`; see ``from_driver``.

    Raises torch's error if absent.
    """
    import torch  # 1.5 s, and this module must work without it

    return from_driver(torch.cuda.get_device_properties(index))
