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
            "_compiler/__init__.py",
            "_compiler/frontend/expressions/calls.py",
            "_compiler/frontend/frames.py",
            "_compiler/frontend/hl_escape.py",
            "_compiler/frontend/statements/loops.py",
            "_compiler/frontend/primitives.py",
            "_compiler/frontend/purity.py",
            "_compiler/frontend/scaled_dot.py",
            "_compiler/frontend/torch_matmul.py",
            "_compiler/frontend/torch_shapes.py",
            "_compiler/host/effects.py",
            "autotuner/space/build.py",
            "autotuner/space/core.py",
        }
    ),
}

#: Imports, as "file: rule: what is imported".
IMPORTS = frozenset(
    {
        "__init__.py: backend named: helion.backends.triton.execute.standalone.OutputCodeOptions",
        "__main__.py: backend named: helion.backends.triton.toolchain.offline.ptxas_version",
        "backends/triton/execute/fast_launch.py: import from below: helion.runtime.stub",
        "backends/triton/execute/launcher.py: import from below: helion.runtime.stub",
        "backends/triton/execute/native/build.py: import from below: helion.runtime.codecache",
        "runtime/__init__.py: backend named: helion.backends.triton.execute.launcher.default_launcher",
        "runtime/__init__.py: backend named: helion.backends.triton.execute.launcher.get_num_sm",
        "runtime/__init__.py: backend named: helion.backends.triton.execute.launcher.random_seed",
        "runtime/__init__.py: backend named: helion.backends.triton.execute.launcher.set_triton_allocator",
        "runtime/__init__.py: backend named: helion.backends.triton.execute.launcher.source_module",
        "runtime/bound.py: backend named: helion.backends.triton.execute.fast_launch.launcher",
        "runtime/bound.py: backend named: helion.backends.triton.execute.standalone.OutputCodeOptions",
        "runtime/bound.py: backend named: helion.backends.triton.execute.standalone.without_helion",
        "runtime/checked.py: backend named: helion.backends.triton.execute.fast_launch",
        "runtime/checked.py: backend named: helion.backends.triton.execute.interpreter.races",
        "runtime/codecache.py: backend named: helion.backends.triton.execute.compilable.make_compilable",
        "runtime/dispatch.py: backend named: helion.backends.triton.execute.fast_launch",
        "runtime/dispatch.py: backend named: helion.backends.triton.execute.inline_launch",
        "runtime/dispatch.py: backend named: helion.backends.triton.execute.native",
        "runtime/explain.py: backend named: helion.backends.triton.toolchain.offline.OfflineCompileError",
        "runtime/failures.py: backend named: helion.backends.triton.execute.fast_launch",
        "runtime/failures.py: backend named: helion.backends.triton.execute.fast_launch.FastLauncher",
        "runtime/kernel.py: backend named: helion.backends.triton.execute.launcher.DEFAULT_TARGET",
        "runtime/kernel.py: backend named: helion.backends.triton.execute.launcher.register_source",
        "runtime/measure.py: backend named: helion.backends.triton.plan.records.Plan",
        "runtime/measure.py: backend named: helion.backends.triton.toolchain.offline.compile_offline",
        "runtime/measure.py: backend named: helion.backends.triton.toolchain.resources.Resources",
        "runtime/measure.py: backend named: helion.backends.triton.toolchain.resources.measure",
        "runtime/observed.py: backend named: helion.backends.triton.execute.fast_launch",
    }
)
