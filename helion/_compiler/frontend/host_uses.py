"""Errors of device code that uses a host tensor as if it were loaded, with their remedies."""

from __future__ import annotations

from ... import exc
from .values import HostTensorValue, source_name

#: Methods that give other shapes or strides of the same elements, with arguments that make an example.
_VIEWS = {
    **dict.fromkeys(("view", "reshape"), "-1"),
    **dict.fromkeys(("flatten", "ravel", "contiguous", "t", "squeeze"), ""),
    **dict.fromkeys(("unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"), "..."),
    **dict.fromkeys(("unsqueeze", "expand", "expand_as", "view_as", "reshape_as", "narrow", "select"), "..."),
}
#: Methods that write where an index tensor says.
_INDEXED_WRITES = (
    *("index_add_", "index_copy_", "index_fill_", "index_put_", "index_reduce_", "put_"),
    *("scatter_", "scatter_add_", "scatter_reduce_"),
)


def used_directly(tensor: HostTensorValue, how: str) -> exc.HostTensorDirectUsage:
    """Return the error of a host tensor that device code uses without a load."""
    name = source_name(tensor)
    if tensor.ndim:
        remedy = f"load a tile of it first, as in `{name}[tile]`"
    else:
        remedy = f"it has no dimensions, so load its number first, as in `{name}[()]`"
    return exc.HostTensorDirectUsage(name=name, how=how, remedy=remedy)


def used_by(tensor: HostTensorValue, function: str) -> exc.HostTensorDirectUsage:
    """Return the error of a host tensor that device code gives to the torch function of that name."""
    how, name, method = f"by {function}", source_name(tensor), function.split(".")[-1]
    if method not in _VIEWS:
        return used_directly(tensor, how)
    result = "flat" if method in ("view", "reshape", "flatten", "ravel") else "view"
    remedy = f"make the view in host code before the loop, as in `{result} = {name}.{method}({_VIEWS[method]})`"
    return exc.HostTensorDirectUsage(name=name, how=how, remedy=f"{remedy}, and load tiles of that")


def written_by(tensor: HostTensorValue, method: str) -> str:
    """Return what to write in place of an in-place method of a host tensor."""
    name = source_name(tensor)
    if method not in _INDEXED_WRITES:
        return f"; store into a tile of the host tensor, as in `{name}[tile] = value`"
    index = ", ".join(["indices[tile]", *["..."] * (tensor.ndim > 1)])
    return (
        f"; add at indices with `hl.atomic_add({name}, [{index}], value)`, or, where no index occurs twice, "
        f"store with `hl.store({name}, [{index}], value)`"
    )
