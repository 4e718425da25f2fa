"""The code of a config: the plan of a backend, and the module that was printed from it."""

from __future__ import annotations

import pickle
from typing import Any

from ... import exc
from .program import HostProgram, Module


class Code:
    """A plan, whose type is the backend's, and the module made from it.

    Code that was pickled reads its plan and its host program on first use: a later process runs the text.
    """

    def __init__(self, plan: Any, module: Module) -> None:
        self._plan = plan
        self._module = module
        self.text = module.text
        self.warnings: tuple[exc.BaseWarning, ...] = plan.warnings
        self.needs_alignment: bool = plan.needs_alignment

    def __getstate__(self) -> dict[str, Any]:
        kept = {"_plan": self._plan, "_module": self._module}
        return {**vars(self), **{k: v if isinstance(v, bytes) else pickle.dumps(v) for k, v in kept.items()}}

    @property
    def plan(self) -> Any:
        self._plan = pickle.loads(self._plan) if isinstance(self._plan, bytes) else self._plan
        return self._plan

    @property
    def module(self) -> Module:
        self._module = pickle.loads(self._module) if isinstance(self._module, bytes) else self._module
        return self._module

    @property
    def host(self) -> HostProgram:
        return self.module.host
