"""Count the named constants of the heuristics, which are to be rows of ``tuned.tsv``.

python scripts/constants.py
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "helion" / "backends" / "triton" / "heuristics"
#: Most named constants of all files.
MOST = 120


def constants(text: str) -> int:
    """Return the number of names in capitals that a module assigns."""
    found = 0
    for node in ast.parse(text).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        found += sum(name.id.strip("_").isupper() for name in names)
    return found


def main() -> None:
    counts = {path.relative_to(FOLDER): constants(path.read_text()) for path in sorted(FOLDER.rglob("*.py"))}
    for path, count in counts.items():
        if count:
            print(f"{count:4} {path}")
    print(
        f"{sum(counts.values())} constants, at most {MOST}; {len((FOLDER / 'tuned.tsv').read_text().splitlines()) - 1} rows"
    )


if __name__ == "__main__":
    main()
