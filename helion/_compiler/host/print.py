"""Source text of a host function, and of the definitions that its module needs."""

from __future__ import annotations

import ast

from .build import RUNTIME, RUNTIME_NAME, SOURCE_NAME, comparison_name
from .program import Form, HostProgram, Import

SOURCE_IMPORT = Import(module=RUNTIME, name="source_module")
LAUNCHER_IMPORT = Import(module=RUNTIME, name="default_launcher", alias="_default_launcher")


def print_host(host: HostProgram) -> str:
    """Return the function as source text."""
    body = [*host.class_check, *host.statements()]
    return ast.unparse(ast.FunctionDef(host.traced.function.name, host.arguments, body, [], lineno=0))


def print_comparisons(host: HostProgram) -> list[str]:
    """Return lines that define the comparisons of tensors before launches."""
    return [
        f"{comparison_name(at)} = {RUNTIME_NAME}.expected_tensors({', '.join(map(repr, expected))})"
        for at, expected in enumerate(host.comparisons)
    ]


def print_source(host: HostProgram, form: Form) -> list[str]:
    """Return lines that give the globals of the user's module, if the function reads any."""
    if not host.reads_source:
        return []
    load = []
    if form.source is not None:
        name, file = form.source
        load = [
            "import runpy",
            "from helion.runtime import register_source",
            "",
            f"register_source({name!r}, {file!r}, runpy.run_path({file!r}))",
        ]
    traced = host.traced
    return ["", *load, f"{SOURCE_NAME} = source_module({traced.source_module!r}, {traced.device_source!r})"]
