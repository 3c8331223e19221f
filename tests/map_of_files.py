"""The map of files in README, made from the first sentence of every module.

`python tests/map_of_files.py` writes it into README; `tests/test_readme.py` compares.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADING = "## Map of files"
PACKAGES = ("app", "engine", "kernels", "packaging")


def tracked() -> list[Path]:
    """Python files of the product, those not yet committed included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in names.splitlines()]
    return sorted(p for p in paths if p.parts[0] in PACKAGES and (ROOT / p).exists())


def sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def section() -> str:
    """The whole section: one list per folder, one line per module."""
    lines = [HEADING, ""]
    folder = None
    for path in tracked():
        if path.name == "__init__.py" and not sentence(path):
            continue  # empty on purpose
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"**{folder.as_posix()}/**", ""]
        lines.append(f"- `{path.as_posix()}`: {sentence(path)}")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def split(readme: str) -> tuple[str, str, str]:
    """README before the section, the section, and after it."""
    start = readme.index(HEADING)
    end = readme.find("\n## ", start + 1)
    end = len(readme) if end < 0 else end + 1
    return readme[:start], readme[start:end], readme[end:]


def main() -> None:
    path = ROOT / "README.md"
    before, _, after = split(path.read_text(encoding="utf-8"))
    path.write_text(before + section() + ("\n" if after else "") + after, encoding="utf-8")


if __name__ == "__main__":
    main()
