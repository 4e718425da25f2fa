"""First seeds of kernels that nothing was tuned on, and of steps of whole workloads, compiled with the real assemblers for nine GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from helion import exc
from helion._testing import EXAMPLES_DIR, import_path

proof = import_path(EXAMPLES_DIR.parent / "scripts" / "prove_unseen.py")

CELLS = {(cell.kernel.name, cell.case): cell for cell in proof.all_cells()}
ROWS = proof.parse(proof.TABLE.read_text())
#: Prime to the number of GPUs, so that the sample meets all of them.
EVERY = 34
#: Parts of the rows of a GPU, each a test of its own, so that processes share the work.
PARTS = 8
REMEDY = "the seeds differ from test/seeds/unseen.tsv; run scripts/prove_unseen.py and look at the diff"


def test_the_file_has_every_kernel_on_every_gpu() -> None:
    assert len(proof.all_cells()) == len(CELLS) and len({name for name, _ in CELLS}) >= 120
    known = {(row.kernel, row.case, row.target) for row in ROWS}
    missing = [(*key, target) for key in CELLS for target in proof.TARGETS if (*key, target) not in known]
    assert len(ROWS) == len(known) and all(target in ("sm_80", "sm_86") for *_, target in missing)
    for name, case, target in missing:
        with pytest.raises(exc.BackendUnsupported, match="float8"):
            CELLS[name, case].kernel.bind(CELLS[name, case].args, target=target)


def test_seeds_fit_and_hardly_spill_and_predictions_are_close() -> None:
    assert proof.complaints(ROWS) == []


def test_a_sample_of_the_file_is_what_the_heuristics_choose() -> None:
    for row in ROWS[::EVERY]:
        cell = CELLS[row.kernel, row.case]
        bound = cell.kernel.bind(cell.args, target=row.target)
        seed = bound.seeds[0]
        found = proof.digest(str(bound.short_config(seed.config))), seed.predicted.registers_per_thread
        assert (*found, seed.predicted.shared_bytes) == (row.seed, row.predicted, row.shared_predicted), REMEDY


@pytest.mark.parametrize("at", [5, 700, len(ROWS) - 1])
def test_a_row_is_what_the_assembler_says(at: int) -> None:
    row = ROWS[at]
    assert proof.compiled(CELLS[row.kernel, row.case], row.target) == row, REMEDY


def test_a_row_reads_back_and_says_what_is_wrong() -> None:
    first = ROWS[0]
    text = "\t".join((*proof.TEXTS, *proof.NUMBERS)) + "\n" + first.text
    assert proof.parse(text) == [first] and first.complaints() == []
    worse = dataclasses.replace(first, shared=first.shared_limit + 1, spilled=999, shared_predicted=0)
    assert len(worse.complaints()) == 2
    assert any("spill" in what for what in proof.complaints([worse]))
    far = dataclasses.replace(first, predicted=first.registers // 2)
    assert any("registers are" in what for what in proof.complaints([far]))
    assert "sm_80" in proof.report(ROWS)


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", proof.TARGETS)
def test_every_row_is_what_the_assembler_says(target: str, part: int) -> None:
    rows = [row for row in ROWS if row.target == target][part::PARTS]
    found = [proof.compiled(CELLS[row.kernel, row.case], target) for row in rows]
    assert [each for each in zip(rows, found, strict=True) if each[0] != each[1]] == [], REMEDY
