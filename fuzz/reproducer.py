"""A failure as a standalone file, which needs only torch and helion and prints ``ok`` or ``FAIL``."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import families
from .shrink import Failure

_HERE = Path(__file__).parent

_MAIN = """
def main() -> None:
    args = make({inputs}, {seed}, {device!r})
    expected = expect(reference, exact(args), {precision}, 1)
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory of torch.empty holds NaN
    for _ in range(2):
        results = {name}(*args)
        wrong = verdict(results, expected)
        print(f"FAIL: {{wrong}}" if wrong else "ok")
    torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    main()
"""


def _module(name: str) -> str:
    """Return the text of a module of this package without its first docstring and its future import."""
    text = (_HERE / name).read_text()
    return text.split("from __future__ import annotations\n", 1)[1].strip()


def script(failure: Failure, device: str) -> str:
    """Return the text of a reproducer."""
    case = families.render(failure.draft)
    settings = {"backend": failure.backend, **case.settings}
    if failure.config:
        settings["config"] = dict(failure.config)
    decorator = f"@helion.kernel({', '.join(f'{key}={value!r}' for key, value in settings.items())})"
    main = _MAIN.format(
        inputs=case.inputs, seed=failure.draft.seed, device=device, precision=case.precision, name=case.name
    )
    head = f'"""{failure.kind}: {failure.detail[:400]}\n\nDraft: {failure.draft.to_json()}\n"""'.replace("\\", "/")
    return (
        "\n\n".join(
            [
                head,
                "from __future__ import annotations",
                "import helion\nimport helion.language as hl",
                _module("inputs.py"),
                _module("judge.py"),
                case.kernel.replace("@helion.kernel()", decorator),
                case.reference,
                main.strip(),
            ]
        )
        + "\n"
    )


def bundle(failures: Sequence[Failure], device: str, path: Path) -> None:
    """Write the reproducers of ``failures`` into one zip file, each under the name of its kernel."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, failure in enumerate(failures):
            name = f"{number:02}_{failure.kind}_{failure.draft.name}_{failure.backend}.py"
            archive.writestr(name, script(failure, device))
