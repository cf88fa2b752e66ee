"""`python -m cuda_sim.translate FILE.ptx ARCH FOLDER` writes the C files of a module."""

from __future__ import annotations

import sys
from pathlib import Path

from .module import translate
from .parse import Unsupported


def main(ptx: str, arch: str, folder: str) -> int:
    path = Path(ptx)
    try:
        files = translate(path.read_text(encoding="utf-8"), arch)
    except Unsupported as error:
        print(f"{path.name}: the simulator does not know: {error}", file=sys.stderr)
        return 1
    for number, text in enumerate(files):
        (Path(folder) / f"{path.stem}_{number}.c").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
