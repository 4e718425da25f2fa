"""The variants of attention in `examples/attention_variants`, against eager PyTorch in fp32, and their cute kernels."""

from __future__ import annotations

import pytest
import torch

import helion
from helion import exc
from helion._testing import EXAMPLES_DIR, as_meta, import_path

FOLDER = EXAMPLES_DIR / "attention_variants"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "comparison")
REFUSED = ("exclusive",)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare values, and compile for Hopper by the cute backend, which refuses one form."""
    monkeypatch.syspath_prepend(FOLDER)
    example, comparison = import_path(FOLDER / f"{name}.py"), import_path(FOLDER / "comparison.py")
    for kernel, args in example.cases():
        comparison.relative_error(kernel, example.reference, args)
        cute = helion.kernel(backend="cute")(kernel.fn)
        if name in REFUSED:
            with pytest.raises(exc.CuteUnsupported):
                cute.bind(as_meta(args), target="sm_90")
        else:
            assert "attention" in type(cute.bind(as_meta(args), target="sm_90").plan()).__name__.lower()


def test_gradients_of_grouped_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    example = import_path(FOLDER / "grouped_causal.py")
    ((_, (q, k, v)),) = example.cases()
    example.check_gradients(q, k, v)
    logsum = torch.empty(q.shape[:3], device="meta")
    for kernel in (example.grouped_dq, example.grouped_dk_dv):
        cute = helion.kernel(backend="cute")(kernel.fn)
        bound = cute.bind((*as_meta((q, k, v, q)), logsum, logsum), target="sm_90")
        assert "gradients of attention" in str(bound.plan())
