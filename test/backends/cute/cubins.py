"""Compiles plans of ``gemms``, all unless some are named, and writes what stands in the binaries to ``cubins.json``.

python test/backends/cute/cubins.py [NAME ...]

Needs the CuTe DSL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]

from backends.cute import gemms

from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.plan.shared import shared_bytes
from helion.backends.cute.toolchain.audit import audit, misplaced_barriers
from helion.backends.cute.toolchain.offline import compile_text, dsl_version

FILE = Path(__file__).with_name("cubins.json")


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def versions() -> dict[str, str]:
    return {"nvidia-cutlass-dsl": dsl_version()}


def measure(plan: GemmPlan) -> dict[str, Any]:
    from triton import knobs

    compiled = compile_text(build(plan), plan)
    found = audit(compiled.cubin, nvdisasm=knobs.nvidia.nvdisasm.path, cuobjdump=knobs.nvidia.cuobjdump.path)
    return {
        "registers": found.registers,
        "stack_bytes": found.stack_bytes,
        "mainloop": found.mainloop,
        "shared_bytes": shared_bytes(plan),
        "misplaced_barriers": sorted(misplaced_barriers(compiled.ptx, plan)),
        "opcodes": dict(sorted(found.opcodes.items())),
    }


def main() -> None:
    plans = gemms.all_plans()
    kept = read()["plans"]
    wanted = sys.argv[1:] or [*plans]
    measured = {
        name: measure(plan) if name in wanted or name not in kept else kept[name] for name, plan in plans.items()
    }
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in measured.items())
    FILE.write_text(f'{{"versions": {json.dumps(versions())}, "plans": {{\n{rows}\n}}}}\n')
    print(f"{len(measured)} plans in {FILE}")


if __name__ == "__main__":
    main()
