"""The kernels in `examples/jagged`, against eager PyTorch, and compiled for a GPU that is not there."""

from __future__ import annotations

import pytest

import helion
from helion._testing import EXAMPLES_DIR, as_meta, check, import_path

FOLDER = EXAMPLES_DIR / "jagged"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    example = import_path(FOLDER / f"{name}.py")
    (kernel,) = (value for value in vars(example).values() if isinstance(value, helion.Kernel))
    for label, shown, args in example.cases():
        assert shown is kernel
        check(f"{name}, {label}", kernel, example.reference, args)
    source = kernel.bind(as_meta(args), target="sm_90").to_triton_code()
    compile(source, f"<generated from {name}>", "exec")
