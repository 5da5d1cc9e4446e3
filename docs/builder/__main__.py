"""Build the site: ``python -m docs.builder [FOLDER]`` writes the pages and runs Sphinx, whose warnings are errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.builder.pages import ROOT, pages, pictures

#: The output of `make playground`, which becomes a part of the site.
PLAYGROUND = ROOT / "build/playground"


def write(folder: Path, *, playground: bool) -> None:
    """Write the sources of the site."""
    for place, text in {**pages(playground=playground), **pictures()}.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(folder: Path) -> int:
    """Build the site in a folder; its pages are in ``html``."""
    for name in ("source", "html", "doctrees"):
        shutil.rmtree(folder / name, ignore_errors=True)
    playground = (PLAYGROUND / "index.html").exists()
    write(folder / "source", playground=playground)
    configuration = str(Path(__file__).parent)
    command = ["-b", "html", "-q", "-W", "--keep-going", "-E", "-c", configuration, "-d", str(folder / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *command, str(folder / "source"), str(folder / "html")], cwd=ROOT
    )
    if playground:
        shutil.copytree(PLAYGROUND, folder / "html/playground")
    if done.returncode == 0:
        print(f"The manual is in {folder / 'html' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/docs"))
