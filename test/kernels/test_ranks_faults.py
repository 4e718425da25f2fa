"""Faults planted in the examples of several GPUs: simulated ranks find each of them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import helion.distributed as hd
from helion import exc
from helion._compiler.passes.analysis import protocol

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
FAULTS: dict[str, tuple[str, str]] = {
    "one half": (r"half = ch\.seen(\[.*\]) % 2", r"half = ch.seen\1 * 0"),
    "no wait": (r"hl\.wait\(.*\)", "pass"),
    "no signal": (r"hl\.signal\(.*\)", "pass"),
    "signal of a wrong word": (r"hl\.signal\((\w+), \[(.*)\], to", r"hl.signal(\1, [\2 + 1], to"),
    "signal to oneself": (r"hl\.signal\((.*), to=peer\)", r"hl.signal(\1, to=0)"),
    "too many messages": (r"hl\.wait\((.*), sender=(\w+)(.*)\)", r"hl.wait(\1, sender=\2, count=2)"),
}
SMALL = {
    "all_reduce": {"count": 300},
    "all_reduce_rms_norm": {"rows": 5, "columns": 60},
    "matmul_reduce_scatter": {"rows": 32, "columns": 32, "k": 40},
    "matmul_all_reduce": {"rows": 20, "columns": 32, "k": 40},
    "matmul_few_rows": {"rows": 20, "columns": 32, "k": 40},
    "all_gather_matmul": {"rows": 140, "columns": 32, "k": 40},
    "all_reduce_two_shots": {"part": 4500},
    "dispatch_combine": {"tokens": 9, "d": 40},
    "overlapped_matmul": {"rows": 16, "columns": 32, "k": 40},
}
#: Faults that an example does not have: no halves of memory, or a loop that is refused since nothing is left of it.
NOT_IN = {
    "all_reduce_two_shots": {"one half", "no wait"},
    "dispatch_combine": {"one half", "no wait"},
    "overlapped_matmul": set(FAULTS),
}
#: Faults of products that overlap with messages.
OVERLAPPED = {
    "written too early": (r"memory\.hear\(memory\.ready\)", "pass"),
    "read too early": (r"memory\.hear\(memory\.sent\)", "pass"),
    "never ready": (r"tell\(memory\.ready\)", "pass"),
    "never sent": (r"tell\(memory\.sent\)", "pass"),
}
PAIRS = [(name, fault) for name in SMALL for fault in FAULTS if fault not in NOT_IN.get(name, ())]
PAIRS += [("overlapped_matmul", fault) for fault in OVERLAPPED]


def _changed(name: str, pattern: str, replacement: str, folder: Path) -> ModuleType:
    """Return an example in which all matches of a pattern are replaced."""
    text, count = re.subn(pattern, replacement, (EXAMPLES / f"{name}.py").read_text())
    assert count
    file = folder / f"{name}_with_a_fault.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "fault"),
    [pytest.param(*pair, marks=() if pair[0] == "all_reduce" else pytest.mark.prove) for pair in PAIRS],
)
def test_faults_of_examples_are_found(name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "messages_of", lambda *_: None)  # it refuses most of them beforehand
    # Wrong values would end the run before the access that conflicts: only the order of accesses is to be found wrong.
    monkeypatch.setattr(torch.testing, "assert_close", lambda *_, **__: None)
    module = _changed(name, *(FAULTS | OVERLAPPED)[fault], tmp_path)
    with pytest.raises((exc.DataRace, exc.Deadlock, exc.ReadModifyWriteRace)):
        hd.run(lambda: module.on_rank(**SMALL[name], calls=4), 2)


def test_products_and_sums_are_sent_in_parts(tmp_path: Path) -> None:
    module = _changed("overlapped_matmul", "PART_ROWS = 512\n", "PART_ROWS = 4\n", tmp_path)
    module.COPIED_ROWS_OF_SUMS = 20
    for rows, ends in ((22, [8, 12, 16, 20, 22]), (18, [4, 8, 12, 16, 18])):
        found = [(part.start, part.stop) for part in module.parts_of_sums(rows)]
        assert found == list(zip([0, *ends], ends, strict=False))
    for module.COPIED_ROWS, module.HALVED_ROWS in ((512, 2048), (10, 2048), (10, 20)):
        module.COPIED_ROWS_OF_SUMS = module.COPIED_ROWS
        assert all(error < 0.1 for error in hd.run(lambda: module.on_rank(rows=22, columns=32, k=40, calls=2), 3))
