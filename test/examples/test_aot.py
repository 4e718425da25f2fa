"""The kernel in `examples/aot`, whose configs come from the table next to it."""

from __future__ import annotations

import ast

import pytest
import torch

import helion
from helion._testing import EXAMPLES_DIR, check, import_path

FOLDER = EXAMPLES_DIR / "aot"
TABLE = import_path(FOLDER / "_helion_aot_row_norm_cuda_sm90.py")


def test_example(capsys: pytest.CaptureFixture) -> None:
    example = import_path(FOLDER / "row_norm.py")
    for label, kernel, args in example.cases():
        check(label, kernel, example.reference, args)
        assert kernel.bind(args).config.num_warps == TABLE.autotune_row_norm(*args)["num_warps"]
    assert "NoAOTHeuristicWarning" not in capsys.readouterr().err


def test_every_length_has_a_config() -> None:
    example = import_path(FOLDER / "row_norm.py")
    for number, n in enumerate((1, 1001, 4097, 16385, 32769)):
        x = torch.empty([64, n], dtype=torch.bfloat16, device="meta")
        bound = example.row_norm.bind((x, x[0]), target="h200")
        assert TABLE.key_row_norm(x, x[0]) == number
        assert bound.default_config().block_sizes == TABLE.CONFIGS[number]["block_sizes"]


def test_configs_are_the_fastest_of_the_sweep() -> None:
    rows = (EXAMPLES_DIR.parent / "benchmarks" / "results" / "nvidia-h200-sweeps.tsv").read_text().splitlines()
    fields = [row.split("\t") for row in rows if row.startswith("rms_norm\t")]
    for n, config in zip((1000, 4096, 16384, 32768, 131072), TABLE.CONFIGS, strict=True):
        timed = [
            (float(us), text)
            for _, case, dtype, text, us in fields
            if (case.split()[-1], dtype, bool(us)) == (str(n), "bfloat16", True)
        ]
        least = min(us for us, _ in timed)
        fastest = [helion.Config(**ast.literal_eval(text.replace("null", "None"))) for us, text in timed if us == least]
        assert any({**each, **config} == each for each in map(dict, fastest)), n
