"""The table of seeds: what the heuristics choose, and what of it the real assemblers say."""

from __future__ import annotations

import pytest

from helion._testing import EXAMPLES_DIR, import_path

SCRIPTS = EXAMPLES_DIR.parent / "scripts"
seeds = import_path(SCRIPTS / "seeds.py")
proof = import_path(SCRIPTS / "prove_seeds.py")

CELLS = seeds.cells()
#: Prime to the number of row lengths and dtypes, so that the sample meets all of them.
EVERY = 7
REMEDY = "the seeds differ from test/seeds/seeds.tsv; run `make seeds` and look at the diff"


def kept_lines() -> dict[tuple[str, ...], list[str]]:
    """The columns by suite, kernel, case, dtype and target, with the facts written out."""
    found: dict[tuple[str, ...], list[str]] = {}
    facts = ""
    for one in seeds.TABLE.read_text().splitlines()[1:]:
        columns = one.split("\t")
        at = seeds.COLUMNS.index("facts")
        columns[at] = facts = facts if columns[at] == '"' else columns[at]
        found[tuple(columns[:at])] = columns
    return found


def test_the_table_has_every_cell_once() -> None:
    keys = [cell.key for cell in CELLS]
    assert len(keys) == len(set(keys))
    assert list(kept_lines()) == [(*key, target) for key in keys for target in seeds.TARGETS], REMEDY
    assert len(seeds.TABLE.read_bytes()) < 600_000


def test_a_sample_of_the_table_is_what_the_heuristics_choose() -> None:
    kept = kept_lines()
    for cell in CELLS[::EVERY]:
        for target in seeds.TARGETS:
            assert list(seeds.line(cell, target)) == kept[(*cell.key, target)], REMEDY


@pytest.mark.prove
def test_the_table_is_what_the_heuristics_choose() -> None:
    assert seeds.table() == seeds.TABLE.read_text(), REMEDY


def test_a_cell_without_a_seed_says_what_is_needed_and_what_there_is() -> None:
    kept = kept_lines().values()
    none = [dict(zip(seeds.COLUMNS, line, strict=True)) for line in kept if line[6] == "none"]
    assert none
    for line in none:
        assert "bytes of shared memory are needed, gfx942 (MI300X) has 65536" in line["config"]


def test_the_compiled_seeds_are_those_of_the_table() -> None:
    table = {key: dict(zip(seeds.COLUMNS, line, strict=True)) for key, line in kept_lines().items()}
    rows = {row.key: row for row in proof.parse(proof.TABLE.read_text())}
    wanted = [
        key
        for key, line in table.items()
        if key[-1] in proof.KEPT_TARGETS and line["heuristic"] not in ("none", "refused")
    ]
    assert list(rows) == wanted
    for key, row in rows.items():
        line = table[key]
        expected = line["config"], line["registers"], line["shared"]
        assert row.chosen == expected, "run `scripts/prove_seeds.py --changed` and look at the diff"


def test_the_compiled_seeds_fit_and_spill_only_where_rows_are_wide() -> None:
    rows = proof.parse(proof.TABLE.read_text())
    assert [(*row.key, *row.complaints) for row in rows if row.complaints] == []
    assert proof.register_error(rows) <= proof.REGISTER_ERROR


@pytest.mark.parametrize("target", proof.KEPT_TARGETS)
def test_one_seed_of_each_suite_compiles(target: str) -> None:
    cells = {cell.suite: cell for cell in CELLS if "4096" not in cell.case}
    for made in proof.prove(seeds, cells.values(), [target]):
        assert not isinstance(made, str), made
        assert made.complaints == []


@pytest.mark.prove
@pytest.mark.parametrize("target", seeds.TARGETS)
def test_every_seed_compiles(target: str) -> None:
    wrong = []
    for made in proof.prove(seeds, CELLS, [target]):
        wrong += [made] if isinstance(made, str) else [(*made.key, what) for what in made.complaints]
    assert wrong == []
