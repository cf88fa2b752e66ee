"""What the compiler made of kernels for real GPUs: registers, memory and machine instructions.

They are read from the fatbins within a module that was built, or from fatbins that are compiled here.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .build import CACHE, MissingTool, digest, find_tool, headers_of, nvcc, run

FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes after it
MAGIC, VERSION = 0xBA55ED50, 1

TARGETS = ("80", "90a", "100", "120")
OPTIONS = ("-std=c++20", "-O3", "-fatbin")


class Resources(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of its stack and of static shared memory."""

    registers: int
    stack: int
    shared: int


def tool(name: str) -> str:
    found = find_tool(name)
    if found is None:
        raise MissingTool(f"{name} is not installed (PyPI has it as nvidia-cuda-{name})")
    return found


def dump(*arguments: str | Path) -> str:
    """What cuobjdump prints, which needs nvdisasm on the path for machine code."""
    folders = [str(Path(tool(name)).parent) for name in ("cuobjdump", "nvdisasm")]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    return run("env", f"PATH={path}", tool("cuobjdump"), *arguments)


def fatbins_in(data: bytes) -> Iterator[bytes]:
    """The fatbins that lie within a file; empty ones that tests put in their place are none."""
    magic, place = MAGIC.to_bytes(4, "little"), 0
    while (place := data.find(magic, place)) >= 0:
        _, version, header, size = FATBIN.unpack_from(data, place)
        end = place + header + size
        if version == VERSION and header == FATBIN.size and size > 0 and end <= len(data):
            yield data[place:end]
            place = end
        else:
            place += len(magic)


def compile_fatbins(sources: Iterable[Path], targets: Iterable[str] = TARGETS, jobs: int = 2) -> list[Path]:
    """A fatbin for each source, kept under the hash of what it depends on."""
    compiler = nvcc()
    version = run(compiler, "--version")
    generate = [f"-gencode=arch=compute_{target},code=sm_{target}" for target in targets]

    def compiled(source: Path) -> Path:
        key = digest(version, " ".join((*OPTIONS, *generate)), source, *headers_of(source, ()))
        path = CACHE / f"{source.stem}_{key}.fatbin"
        if not path.is_file():
            CACHE.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                made = Path(folder) / path.name
                run(compiler, *OPTIONS, *generate, source, "-o", made)
                os.replace(made, path)
        path.touch()
        return path

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(compiled, sources))


def module_fatbins(module: Path, folder: Path) -> list[Path]:
    """The fatbins of a module as files in a folder."""
    paths = []
    for number, data in enumerate(fatbins_in(module.read_bytes())):
        paths.append(folder / f"{number}.fatbin")
        paths[-1].write_bytes(data)
    return paths


def is_stub(kernel: str, target: str) -> bool:
    """Kernels of sm_90a are compiled for others too, where they are empty."""
    return "wgmma" in kernel and target != "90a"


def resources_of(fatbin: Path) -> dict[tuple[str, str], Resources]:
    """By kernel and target."""
    found, target = {}, ""
    usage = re.compile(r"^arch = sm_(\w+)|Function ([\w$]+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", re.MULTILINE)
    for match in usage.finditer(dump("-res-usage", fatbin)):
        if match[1]:
            target = match[1]
        elif not is_stub(match[2], target):
            found[match[2], target] = Resources(*map(int, match.groups()[2:]))
    return found


def blocks_of(fatbin: Path, targets: Iterable[str]) -> dict[tuple[str, str], list[Counter[str]]]:
    """How many of each machine instruction (``HMMA``, ``LDL``) the basic blocks have, by kernel and target."""
    instruction = r"/\*(?P<place>[0-9a-f]{4,})\*/\s+(?:@!?U?P\d+\s+)?(?P<name>[A-Z][A-Z0-9]*)(?P<operands>[^;]*);"
    line = re.compile(rf"^\s+(?:Function : (?P<kernel>[\w$]+)|{instruction})", re.MULTILINE)
    found: dict[tuple[str, str], list[Counter[str]]] = {}
    for target in targets:
        code: dict[str, list[tuple[int, str, str]]] = {}
        for match in line.finditer(dump("-sass", "-arch", f"sm_{target}", fatbin)):
            if match["kernel"]:
                instructions = code.setdefault(match["kernel"], [])
            else:
                instructions.append((int(match["place"], 16), match["name"], match["operands"]))
        found.update({(kernel, target): split(code[kernel]) for kernel in code if not is_stub(kernel, target)})
    return found


def split(instructions: list[tuple[int, str, str]]) -> list[Counter[str]]:
    """Basic blocks end with a jump, and begin where one leads to."""
    begins = {int(match[1], 16) for _, name, operands in instructions
              if name in ("BRA", "BSSY") and (match := re.search(r"0x([0-9a-f]+)", operands))}  # fmt: skip
    blocks: list[Counter[str]] = [Counter()]
    for place, name, _ in instructions:
        if place in begins:
            blocks.append(Counter())
        blocks[-1][name] += 1
        if name in ("BRA", "BRX", "BSYNC", "BREAK", "CALL", "RET", "EXIT"):
            blocks.append(Counter())
    return [block for block in blocks if block]
