"""Build the playground: ``python -m playground.build [FOLDER]`` writes a static page, which needs no network.

npm's packages (Pyodide, CodeMirror) are installed as `playground/package-lock.json` pins them. The Python packages are
evt's wheel, and the installed lark, networkx, Jinja2, MarkupSafe and platformdirs.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from evt.editor.words import FORMS, KEYWORDS, NAMES
from evt.functions import TABLE
from evt.ir.dtype import BY_NAME, OPERANDS
from evt.ir.lower import OPERATIONS
from evt.plan.gpus import GPUS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "playground"
#: The first example, before the samples.
_FIRST = """\
# acc is the matrix product. Undeclared names are inputs.
in  scale: f32[m], bias: f16[n] = 0

z    = scale*acc + bias
D    = gelu(z) + residual
amax = max[m, n](abs(z))
"""
_DEPENDENCIES = ("lark", "networkx", "jinja2", "markupsafe", "platformdirs")
_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_STATIC = ("index.html", "style.css", "worker.js")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(folder: Path) -> None:
    """Write the page to a folder, and npm's packages next to it."""
    modules = folder.parent / f"{folder.name}-npm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    modules.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCE / name, modules / name)
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], modules)
    shutil.copytree(SOURCE / "src", modules / "src", dirs_exist_ok=True)
    (modules / "src/words.json").write_text(json.dumps(words()), encoding="utf-8")
    (modules / "src/examples.json").write_text(json.dumps(examples()), encoding="utf-8")
    bundle = ["npx", "esbuild", "src/main.js", "--bundle", "--minify", "--format=esm", "--log-level=warning"]
    _run([*bundle, f"--outfile={folder.absolute() / 'main.js'}"], modules)
    for name in _STATIC:
        shutil.copy(SOURCE / "src" / name, folder / name)
    (folder / "pyodide").mkdir()
    for name in _PYODIDE:
        shutil.copy(modules / "node_modules/pyodide" / name, folder / "pyodide" / name)
    (folder / "site.zip").write_bytes(site(modules / "wheel"))


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True)


def words() -> dict[str, list[str]]:
    """Return the words of the language by their colours."""
    return {
        "keywords": sorted(KEYWORDS),
        "types": sorted(BY_NAME),
        "functions": sorted({*FORMS, *TABLE.names()}),
        "operations": sorted(OPERATIONS),
        "names": sorted(NAMES),
    }


def examples() -> dict[str, Any]:
    """Return the menus of the page: programs, operations, targets and types."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "samples").glob("*.evt"))}
    programs = [
        {"name": name, "title": name.replace("_", " "), "text": text}
        for name, text in ({"first steps": _FIRST} | texts).items()
    ]
    targets = [(target, f"{target}: {', '.join(gpus[:2])}") for target, gpus in GPUS.items()]
    types = [each.name for each in OPERANDS]
    return {"programs": programs, "operations": list(OPERATIONS), "targets": targets, "types": types}


def site(folder: Path) -> bytes:
    """Return the Python packages of the page as a zip archive."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.absolute())], ROOT)
    (wheel,) = folder.glob("*.whl")
    files = dict(_files_of(wheel))
    for name in _DEPENDENCIES:
        for file in distribution(name).files or ():
            if file.suffix not in (".so", ".pyc", ".pyd") and not {"..", "tests"} & {*file.parts}:
                files[file.as_posix()] = Path(str(file.locate())).read_bytes()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _files_of(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        yield from ((name, archive.read(name)) for name in archive.namelist())


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/playground"
    build(folder)
    print(f"The playground is in {folder}; python -m http.server -d {folder} serves it.")


if __name__ == "__main__":
    main()
