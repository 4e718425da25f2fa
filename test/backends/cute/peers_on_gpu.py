"""Times torch.compile on the products with an epilogue that `export.py` exported. Needs torch and a GPU.

    python peers_on_gpu.py FOLDER [--seconds N] [--mode MODE]

Prints one line of JSON per product: its name up to the double underscore, and microseconds as `run_on_gpu.py` takes them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run_on_gpu import FLUSH_BYTES, epilogue, inputs, timed


def fused(plan: dict[str, Any], mode: str, torch: Any) -> Callable[..., Any]:
    def product(a: Any, b: Any, *operands: Any) -> Any:
        kinds = [each["kind"] for each in plan["operands"]]
        given = [(a @ x.t()).float() if kind == "product" else x for kind, x in zip(kinds, operands, strict=True)]
        return epilogue(plan, (a @ b.t()).float(), given, torch).to(a.dtype)

    return torch.compile(product, dynamic=False, mode=mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--mode", default="default")
    options = parser.parse_args()
    import torch

    deadline = time.monotonic() + options.seconds
    plans = json.loads((options.folder / "plans.json").read_text())
    cells = {name.partition("__")[0]: plan for name, plan in plans.items() if "__" in name and plan["instructions"]}
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for name, plan in cells.items():
        if plan["dtypes"][0].startswith("float8") or time.monotonic() > deadline:
            continue
        a, b, _, *operands = inputs(plan, torch)
        start = time.monotonic()
        function = fused(plan, options.mode, torch)
        us = timed(lambda: function(a, b, *operands), torch, flush)  # noqa: B023
        row = {"peer": name, "mode": options.mode, "us": us, "compile_s": round(time.monotonic() - start, 1)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
