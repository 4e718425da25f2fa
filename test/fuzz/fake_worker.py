"""A worker without torch, whose outcome for a config is what the config asks for."""

import json
import os
import signal
import sys
import time

KINDS = ["right", "die", "hang", "wrong", "right"]

for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "open":
        reply = {
            "backends": {
                "triton": {"configs": [{"kind": kind} for kind in KINDS]},
                "cute": {"kind": "refused", "detail": "no product"},
            }
        }
    else:
        kind = request["config"]["kind"]
        if kind == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang":
            time.sleep(600)
        reply = {"kind": kind, "config": request["config"], "detail": f"because {kind}", "seconds": 0.5}
    print(json.dumps(reply), flush=True)
