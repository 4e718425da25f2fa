"""Generated kernels: the same from the same seed, smaller in every way, and right in the interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import PROVE

from fuzz import families, judge, shrink
from fuzz.cases import Draft
from fuzz.families import BY_NAME, FAMILIES
from fuzz.runner import Outcome, Runner, attempt
from helion import exc

NAMES = [family.name for family in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_kernel(name: str) -> None:
    for seed in range(20):
        for small in (False, True):
            draft = families.draw(seed, small, (name,))
            again = Draft.from_json(json.loads(json.dumps(draft.to_json())))
            assert again == draft == families.draw(seed, small, (name,))
            case = families.render(draft)
            assert case == families.render(again)
            compile(case.source, name, "exec")
    assert len({families.render(families.draw(seed, True, (name,))).source for seed in range(20)}) > 15


@pytest.mark.parametrize("name", NAMES)
def test_every_smaller_draft_is_a_kernel(name: str) -> None:
    for seed in range(6):
        draft = families.draw(seed, False, (name,))
        assert set(BY_NAME[name].simplest) >= {key.rstrip("0123456789") for key in draft.options}
        for smaller in shrink.smaller(draft):
            compile(families.render(smaller).source, name, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_right_in_the_interpreter(name: str, tmp_path: Path) -> None:
    runner = Runner("cpu", tmp_path)
    for seed in range(1, 20 if PROVE else 2):
        draft = families.draw(seed, True, (name,))
        for backend in families.render(draft).backends[: 2 if PROVE else 1]:
            configs = runner.configs(draft, backend, 1)
            if isinstance(configs, Outcome):
                assert (backend, configs.kind) == ("cute", "refused"), configs.detail
                continue
            for config in configs[-2:]:
                outcome, full = runner.run(draft, backend, config.to_dict())
                assert outcome.kind == "right", (outcome, full)


def test_sizes_of_a_gpu_are_larger() -> None:
    largest = {
        small: max(max(families.draw(seed, small).sizes.values()) for seed in range(60)) for small in (False, True)
    }
    assert largest[False] > 500 > 64 > largest[True]


def test_weights_deal_seeds_out_to_all_families() -> None:
    assert {families.draw(seed, True).family for seed in range(40)} == set(NAMES)
    assert {families.draw(seed, True, ("scans", "rows")).family for seed in range(9)} == {"scans", "rows"}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ptxas 12.8 computes wrong addresses for the operands of two matmuls", "refused"),
        ("(C7602) Insufficient registers (64) to compile instruction", "too_large"),
        ("PassManager::run failed", "uncompiled"),
        ("CUDA error: misaligned address", "crashed"),
    ],
)
def test_errors_of_the_compiler_have_kinds(reason: str, kind: str) -> None:
    def fail() -> None:
        raise exc.TritonError(kernel="f", decorator="@helion.kernel()", reason=reason, path="f.py")

    assert attempt(fail).kind == kind


@pytest.mark.parametrize(("dtype", "operands"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "tf32")])
def test_scores_of_attention_have_the_precision_that_matmuls_return(dtype: str, operands: str) -> None:
    """Scores of up to 20 in fp16, as ``torch.bmm`` returns them, have errors that fp32 arithmetic does not."""
    options = {**BY_NAME["attention"].simplest, "dtype": dtype, "softmax": "online2"}
    draft = Draft(family="attention", seed=1, sizes={"b": 3, "m": 256, "n": 129, "d": 128}, options=options, steps=())
    case = families.render(draft)
    assert "torch.bmm(q, k[i, :, c]).to(torch.float32)" in case.kernel
    assert case.precision == judge.Precision(values=dtype, operands=operands)
