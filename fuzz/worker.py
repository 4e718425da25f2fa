"""The process that runs pairs: requests come as JSON lines on its input, replies go as JSON lines to its output.

    python -m fuzz.worker --device cuda --work DIR

``{"do": "open", "draft": …, "count": N}`` returns the configs of every backend, or the reason why there are none.
``{"do": "run", "draft": …, "backend": …, "config": …, "fit": …}`` returns an outcome. Output of kernels goes to stderr.
A device error ends the process, since nothing can run after it. SIGUSR1 writes the stack to ``DIR/stack``.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from .cases import Draft
from .families import render
from .runner import Outcome, Runner, attempt


def answer(runner: Runner, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to one request."""
    draft, begin = Draft.from_json(request["draft"]), time.monotonic()
    if request["do"] == "open":
        backends = {}
        found = attempt(lambda: render(draft).backends)
        for backend in found if isinstance(found, tuple) else ():
            configs = runner.configs(draft, backend, request["count"])
            if isinstance(configs, Outcome):
                backends[backend] = vars(configs)
            else:
                backends[backend] = {"configs": [config.to_dict() for config in configs]}
        if isinstance(found, Outcome):
            backends["triton"] = {"kind": "unjudged", "detail": found.detail}
        return {"backends": backends, "seconds": time.monotonic() - begin}
    outcome, config = runner.run(draft, request["backend"], request["config"], request.get("fit", False))
    return {**vars(outcome), "config": config, "seconds": time.monotonic() - begin}


def serve(runner: Runner, requests: TextIO, replies: TextIO) -> None:
    """Serve requests until there are no more, or the device is unusable."""
    for count, line in enumerate(requests):
        reply = answer(runner, json.loads(line))
        print(json.dumps(reply), file=replies, flush=True)
        if reply.get("kind") == "crashed":
            return
        if count % 64 == 0:
            gc.collect()


def main() -> None:
    """Serve on standard input and output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work = options.work / f"worker-{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR1, (work / "stack").open("w"), all_threads=True)
    faulthandler.enable(sys.stderr)
    torch.set_num_threads(1)
    serve(Runner(options.device, work), sys.stdin, replies)


if __name__ == "__main__":
    main()
