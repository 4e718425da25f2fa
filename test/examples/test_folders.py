"""The kernels in `examples/jagged` and `examples/linear`, against eager PyTorch, and compiled for a GPU that is not there."""

from __future__ import annotations

import pytest

import helion
from helion._testing import EXAMPLES_DIR, as_meta, check, import_path

EXAMPLES = sorted(
    f"{folder}/{path.stem}" for folder in ("jagged", "linear") for path in (EXAMPLES_DIR / folder).glob("*.py")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    example = import_path(EXAMPLES_DIR / f"{name}.py")
    (kernel,) = (value for value in vars(example).values() if isinstance(value, helion.Kernel))
    for label, shown, args in example.cases():
        assert shown is kernel
        check(f"{name}, {label}", kernel, example.reference, args)
    source = kernel.bind(as_meta(args), target="sm_90").to_triton_code()
    compile(source, f"<generated from {name}>", "exec")


@pytest.mark.prove
def test_gradients_of_linear_attention() -> None:
    import_path(EXAMPLES_DIR / "linear" / "gated.py").check_gradients()
