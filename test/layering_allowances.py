"""What `test_layering` puts up with today. Entries may go and not come: one that is not needed any more fails too."""

from __future__ import annotations

#: Files that import each other, types included, in sets of more than three.
CIRCLES = (
    frozenset(
        {
            "_compiler/frontend/arguments.py",
            "_compiler/frontend/captures.py",
            "_compiler/frontend/frames.py",
            "_compiler/frontend/host_data.py",
            "_compiler/frontend/host_factories.py",
            "_compiler/frontend/host_meta.py",
            "_compiler/frontend/host_tensors.py",
            "_compiler/frontend/host_views.py",
            "_compiler/frontend/primitives.py",
            "_compiler/frontend/runtime_values.py",
            "_compiler/frontend/state.py",
            "_compiler/frontend/subscripts.py",
            "_compiler/frontend/tracer.py",
            "_compiler/frontend/values.py",
        }
    ),
    frozenset(
        {
            "_compiler/frontend/statements/branches.py",
            "_compiler/frontend/expressions/calls.py",
            "_compiler/frontend/statements/carried.py",
            "_compiler/frontend/expressions/operators.py",
            "_compiler/frontend/statements/host_loops.py",
            "_compiler/frontend/walk/unfollowed.py",
            "_compiler/frontend/expressions/functions.py",
            "_compiler/frontend/statements/loops.py",
            "_compiler/frontend/expressions/builtin_functions.py",
            "_compiler/frontend/expressions/queries.py",
            "_compiler/frontend/statements/assignments.py",
            "_compiler/frontend/walk/scope.py",
        }
    ),
    frozenset(
        {
            "runtime/bound.py",
            "runtime/checked.py",
            "runtime/dispatch.py",
            "runtime/explain.py",
            "runtime/failures.py",
            "runtime/inputs.py",
            "runtime/kernel.py",
            "runtime/measure.py",
            "runtime/observed.py",
            "runtime/ref_mode.py",
            "runtime/repro.py",
            "runtime/table.py",
        }
    ),
)

#: Files outside of a backend's folder that mention it, by backend.
MENTIONS = {
    "triton": frozenset(
        {
            "_compiler/frontend/expressions/calls.py",
            "_compiler/frontend/statements/loops.py",
            "_compiler/host/effects.py",
            "autotuner/space/build.py",
            "autotuner/space/core.py",
        }
    ),
}

#: Imports, as "file: rule: what is imported".
IMPORTS = frozenset({})
