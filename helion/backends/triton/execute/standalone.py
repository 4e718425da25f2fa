"""Generated modules that run without helion: its imports replaced by what they import."""

from __future__ import annotations

from .... import exc

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
    def set_triton_allocator():
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))

    @staticmethod
    def modelled(*expected):
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
    def random_seed():
        return int(torch.randint(2**31, ()))

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
#: What stands in for each import of helion.
_REPLACEMENTS = {
    "from helion.runtime import default_launcher as _default_launcher": _LAUNCHER,
    "from helion.runtime import source_module": _SOURCE,
    "import helion.runtime as _helion_runtime": _RUNTIME,
    "import helion": _PACKAGE,
}


def without_helion(text: str) -> str:
    """A generated module with its imports of helion replaced. Raises ``exc.InvalidAPIUsage`` for one that cannot be."""
    lines, helpers = [], []
    for line in text.split("\n"):
        if line in _REPLACEMENTS:
            helpers.append(_REPLACEMENTS[line])
        elif line.startswith(("import helion", "from helion")):
            raise exc.InvalidAPIUsage(
                f"The host code of the kernel needs `{line}`, so its module cannot do without helion; keep allow_helion_deps=True."
            )
        else:
            lines.append(line)
    at = lines.index("import triton.language as tl") + 1
    needs_torch = [] if "import torch" in lines else ["import torch"]
    return "\n".join([*lines[:at], *needs_torch, *"".join(helpers).split("\n"), *lines[at:]])
