#!/usr/bin/env python3
"""Check the size and the language of the package and its documentation.

Each check counts what breaks one rule. A check fails if it counts more than its ceiling. Ceilings
above the target only shrink: a check that counts less than its ceiling asks for a lower one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dask_exo"
WIDTH, ROW, MODULES = 100, 240, 15

# name of the check: (at most this many today, target)
CEILINGS = {
    "lines of the package": (45_689, 44_867),
    "files of the package": (200, 200),
    "docstrings that open with a relative clause": (0, 0),
    "folders with too many modules": (0, 0),
    "public class names that mean two things": (0, 0),
    "wide lines of Markdown": (0, 0),
    "wide rows of Markdown tables": (0, 0),
}
OPENER = re.compile(r"(What|Whether|How|Where|Which|When|Who|Whoever|Whichever)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def ambiguous_names_allowed() -> set[str]:
    """Return the class names that the glossary lists under "Names that mean two things"."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Names that mean two things")
    return set(re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE))


def markdown() -> Iterator[tuple[str, str]]:
    """Yield each line of Markdown, and where it stands."""
    folders = [ROOT, ROOT / ".github", ROOT / "docs"]
    for page in sorted(p for f in folders for p in (f.glob if f == ROOT else f.rglob)("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", line


def broken() -> dict[str, list[str]]:
    """Return where each rule is broken, by the name of its check."""
    found: dict[str, list[str]] = {name: [] for name in CEILINGS}
    folders: dict[Path, int] = {}
    classes: dict[str, set[str]] = {}
    allowed = ambiguous_names_allowed()
    for path in sorted(PACKAGE.rglob("*.py")):
        where, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        found["lines of the package"] += [where] * text.count("\n")
        found["files of the package"].append(where)
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, DOCUMENTED) and OPENER.match(ast.get_docstring(node) or ""):
                name = "docstrings that open with a relative clause"
                found[name].append(f"{where}:{getattr(node, 'lineno', 1)}")
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, set()).add(where)
    found["folders with too many modules"] = [
        f"{folder.relative_to(ROOT)} ({count})"
        for folder, count in folders.items()
        if count > MODULES
    ]
    found["public class names that mean two things"] = [
        f"{name} ({', '.join(sorted(files))})"
        for name, files in classes.items()
        if len(files) > 1 and name not in allowed
    ]
    for where, line in markdown():
        if line.startswith("|"):
            if len(line) > ROW:
                found["wide rows of Markdown tables"].append(f"{where} ({len(line)} columns)")
        elif len(line) > WIDTH:
            found["wide lines of Markdown"].append(f"{where} ({len(line)} columns)")
    return found


def main() -> int:
    """Print what each check counts, and return whether one failed, as an exit code."""
    failed = 0
    for name, where in broken().items():
        ceiling, target = CEILINGS[name]
        count = len(where)
        print(f"{count:>6,}  {name} (at most {ceiling:,}, target {target:,})")
        if count > ceiling:
            failed = 1
            if not name.endswith("of the package"):
                print(*(f"        {place}" for place in where), sep="\n")
            print(f"        FAILED: {count - ceiling:,} too many; the ceiling stays as it is")
        elif target <= count < ceiling:
            print(f"        lower the ceiling in .ci/house.py to {count:,}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
