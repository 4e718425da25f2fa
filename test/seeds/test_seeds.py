"""The table of seeds: what the heuristics choose, and what of it the real assemblers say."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from helion._testing import EXAMPLES_DIR, import_path

SCRIPTS = EXAMPLES_DIR.parent / "scripts"
seeds = import_path(SCRIPTS / "seeds.py")
proof = import_path(SCRIPTS / "prove_seeds.py")

CELLS = seeds.cells()
#: Prime to the number of row lengths and dtypes, so that the sample meets all of them.
EVERY = 14
#: Parts of the table, each a test of its own, so that processes share the work.
PARTS = 12
REMEDY = "the seeds differ from test/seeds/seeds.tsv; run `make seeds` and look at the diff"


KEPT = seeds.kept()


def test_the_table_has_every_cell_once() -> None:
    keys = [cell.key for cell in CELLS]
    assert len(keys) == len(set(keys))
    assert list(KEPT) == [(*key, target) for key in keys for target in seeds.TARGETS], REMEDY
    assert len(seeds.TABLE.read_bytes()) < 600_000


def test_a_sample_of_the_table_is_what_the_heuristics_choose() -> None:
    for cell in CELLS[::EVERY]:
        for target in seeds.TARGETS:
            assert seeds.line(cell, target) == tuple(KEPT[(*cell.key, target)].values()), REMEDY


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
def test_the_table_is_what_the_heuristics_choose(part: int) -> None:
    for cell, target in itertools.product(CELLS[part::PARTS], seeds.TARGETS):
        assert seeds.line(cell, target) == tuple(KEPT[(*cell.key, target)].values()), REMEDY


def test_every_cell_has_a_seed_and_what_does_not_fit_says_what_is_needed_and_what_there_is() -> None:
    assert not [line for line in KEPT.values() if line["heuristic"] == "none"]
    (cell,) = (each for each in CELLS if each.key == ("epilogue", "matmul_softmax", "M=131072 K=512 N=2048", "float32"))
    declined = dict(seeds.bind(cell, "gfx942").declined)
    needs = "bytes of shared memory are needed, gfx942 (MI300X) has 65536"
    assert needs in declined["TritonMatmulReductionEpilogueHeuristic"] and needs in declined["TritonFallbackHeuristic"]


def test_the_compiled_seeds_are_those_of_the_table() -> None:
    rows = {row.key: row.seed for row in proof.parse(proof.TABLE.read_text())}
    wanted = {
        key: proof.digest(line["config"])
        for key, line in KEPT.items()
        if key[-1] in proof.KEPT_TARGETS and line["heuristic"] not in ("none", "refused")
    }
    assert list(rows.items()) == list(wanted.items()), "run `scripts/prove_seeds.py --changed` and look at the diff"


def test_the_compiled_seeds_fit_and_spill_only_where_rows_are_wide() -> None:
    rows = proof.parse(proof.TABLE.read_text())
    chosen = {row.key: proof.Predicted.of(KEPT[row.key]) for row in rows}
    assert [(*row.key, *found) for row in rows if (found := row.complaints(chosen[row.key]))] == []
    assert proof.register_error((row, chosen[row.key]) for row in rows) <= proof.REGISTER_ERROR


def test_a_row_says_what_it_was_compiled_from_and_reads_back() -> None:
    text = proof.TABLE.read_text()
    first, *_ = rows = proof.parse(text)
    assert text.splitlines()[1:] == ["\t".join(proof.COLUMNS), *(row.text for row in rows)]
    assert proof.digest("num_warps=4") != proof.digest("num_warps=8") and len(first.seed) == 8
    worse = dataclasses.replace(first, shared=first.shared_limit + 1, spilled=9999)
    assert len(worse.complaints(proof.Predicted(registers=1, shared=0))) == 3


@pytest.mark.parametrize("target", proof.KEPT_TARGETS)
def test_one_seed_of_each_suite_compiles(target: str) -> None:
    cells = {cell.suite: cell for cell in CELLS if "4096" not in cell.case}
    for made in proof.prove(seeds, cells.values(), [target]):
        assert not isinstance(made, str), made
        assert made[0].complaints(made[1]) == []


@pytest.mark.prove
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", seeds.TARGETS)
def test_every_seed_compiles(target: str, part: int) -> None:
    wrong = []
    for made in proof.prove(seeds, CELLS[part::PARTS], [target]):
        wrong += [made] if isinstance(made, str) else [(*made[0].key, what) for what in made[0].complaints(made[1])]
    assert wrong == []
