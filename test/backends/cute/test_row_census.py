"""Row kernels as users write them, of which the cute backend takes all but those that are named here."""

from __future__ import annotations

import sys

import pytest

from helion._testing import EXAMPLES_DIR

sys.path[:0] = [str(EXAMPLES_DIR.parent)]

from benchmarks.row_census import answers  # noqa: E402

REFUSED = {
    "layer_norm_gradients": "atomic in a row kernel",
    "welford_norm": "no running sums",
    "atomic_norm_gradients": "atomic in a row kernel",
}


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_row_kernels_that_are_taken(target: str) -> None:
    found = dict(answers([], target))
    for name, answer in found.items():
        assert REFUSED[name] in answer if name in REFUSED else answer.startswith("yes"), (name, answer)
    assert len(found) - len(REFUSED) >= 97
