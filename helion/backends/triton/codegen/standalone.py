"""Replacements of helion's runtime in modules that run without it."""

from __future__ import annotations

from collections.abc import Sequence

from .... import exc
from ...._compiler.host.print import LAUNCHER_IMPORT, SOURCE_IMPORT
from ...._compiler.host.program import Import

_TORCH = Import(module="torch")

_LAUNCHER = """
def _default_launcher(kernel, grid, *args, **options):
    if 0 not in grid:
        kernel[grid](*args, **options)
"""
_RUNTIME = """
class _helion_runtime:
    @staticmethod
    def get_num_sm(device, reserved_sms=0):
        return max(1, torch.cuda.get_device_properties(device).multi_processor_count - reserved_sms)

    @staticmethod
    def arrived_programs(device):
        return torch.zeros(1, dtype=torch.int32, device=device)

    @staticmethod
    def set_triton_allocator():
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))

    @staticmethod
    def expected_tensors(*expected):
        def agree(numbers, wanted, sizes):
            return all(w is None or n == w or size == 1 for n, w, size in zip(numbers, wanted, sizes))

        def one(tensor, dtype, shape, strides, device=None):
            return (
                str(tensor.dtype) == "torch." + dtype and tensor.dim() == len(shape)
                and agree(tensor.shape, shape, [2] * len(shape)) and (not tensor.numel() or agree(tensor.stride(), strides, tensor.shape))
            )

        return lambda *tensors: all(one(tensor, *each) for tensor, each in zip(tensors, expected))

    @staticmethod
    def mismatch(number, names):
        raise RuntimeError("this module was compiled for other tensors; bind the kernel to them")

    @staticmethod
    def KernelFallback(*_):
        return _helion_runtime.mismatch

    @staticmethod
    def past_the_end(end, size, tile, name, dim, place):
        raise RuntimeError(f"{tile} (up to {end}) reaches past the end of dimension {dim} of {name!r} ({size} elements)")

    @staticmethod
    def out_of_range(index, size, name, dim, place):
        raise IndexError(f"index {index} is out of range for dimension {dim} of {name!r} ({size} elements)")

    @staticmethod
    def flat_bytes(tensor):
        return tensor.view(torch.uint8)

    @staticmethod
    def flat_words(tensor):
        held = tensor.view(torch.uint8).view(-1)
        return held[: held.numel() // 8 * 8].view(torch.int64)

    @staticmethod
    def random_seeds(count, like):
        return torch.randint(2**63 - 1, (count,), device=like.device)

    @staticmethod
    def overwrites(kernel, names, *tensors):
        torch.autograd.graph.increment_version(tensors)
"""
_PACKAGE = """
class helion:
    cdiv = staticmethod(triton.cdiv)
    next_power_of_2 = staticmethod(triton.next_power_of_2)
"""
_SOURCE = """
def source_module(name, file):
    import importlib

    return importlib.import_module(name)
"""
#: The replacement of each import of helion.
_DEFINITIONS = {
    LAUNCHER_IMPORT: _LAUNCHER,
    SOURCE_IMPORT: _SOURCE,
    Import(module="helion.runtime", alias="_helion_runtime"): _RUNTIME,
    Import(module="helion"): _PACKAGE,
}


def without_helion(imports: Sequence[Import]) -> tuple[list[Import], list[str]]:
    """Return the imports of a module that are not of helion, and lines that replace the others.

    Raises ``exc.InvalidAPIUsage`` for an import without a replacement.
    """
    kept, definitions = [], ""
    for each in imports:
        if each.module.partition(".")[0] != "helion":
            kept.append(each)
        elif each in _DEFINITIONS:
            definitions += _DEFINITIONS[each]
        else:
            raise exc.InvalidAPIUsage(
                f"The host code of the kernel needs `{each.line}`, so its module cannot do without helion; keep allow_helion_deps=True."
            )
    needs_torch = [] if _TORCH in kept else [_TORCH.line]
    return kept, [*needs_torch, *definitions.split("\n")]
