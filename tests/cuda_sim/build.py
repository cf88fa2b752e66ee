"""Builds a stand-in for libcuda.so.1 that runs given kernels on the CPU.

    python tests/cuda_sim/build.py OUT.so SOURCES...      (SOURCE:90a is compiled for that architecture only)

Each source goes through nvcc to PTX, through the translator to C, through gcc to objects; all are linked with
the simulator's runtime into one library. Every step is kept under the hash of what it depends on.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime"
TRANSLATOR = HERE / "translate"
CACHE = HERE.parents[1] / "build" / "cuda_sim" / "cuda_sim_cache"

NVCC_OPTIONS = ("-ptx", "-lineinfo", "-std=c++20")
OPTIONS = ("-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing")
# Kernels are large and run for moments, most of them within the runtime: optimisation takes longer than it saves.
KERNEL_OPTIONS = ("-x", "c", "-std=gnu17", "-O0", "-w")
DAYS_KEPT = 14
RUNTIME_OPTIONS = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror")


class MissingTool(RuntimeError):
    """A compiler that the simulator needs is not installed."""


class BuildError(RuntimeError):
    """A step of the build failed; the message is what the tool printed."""


def find_tool(name: str) -> str | None:
    """A tool of the CUDA toolkit: on the path, in the toolkit or among Python's packages."""
    packages = [f"{path}/nvidia/cu13/bin" for path in (sysconfig.get_path("purelib"), *sys.path)]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", *packages]))


def nvcc() -> str:
    found = find_tool("nvcc")
    if found is None:
        raise MissingTool("nvcc, NVIDIA's CUDA compiler, is not installed")
    return found


def gxx() -> str:
    found = shutil.which("g++")
    if found is None:
        raise MissingTool("g++ is not installed")
    return found


def cuda_include(compiler: str) -> Path:
    """The folder of cuda.h, from what nvcc would do."""
    done = subprocess.run([compiler, "-dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True)
    found = re.search(r'INCLUDES="?-I([^"\s]+)', done.stderr)
    if found is None or not (Path(found[1]) / "cuda.h").is_file():
        raise MissingTool("cuda.h is not where nvcc looks for it")
    return Path(found[1])


def run(*command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def digest(*parts: str | bytes | Path) -> str:
    """Of texts and of the contents of files."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        hashed.update(hashlib.sha256(data).digest())
    return hashed.hexdigest()[:32]


def headers_of(source: Path, include_dirs: Sequence[Path]) -> list[Path]:
    """The files that a source includes by a quoted name, and those that they include."""
    found: dict[Path, None] = {}
    todo = [source]
    while todo:
        path = todo.pop()
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
            for folder in (path.parent, *include_dirs):
                header = (folder / name).resolve()
                if header.is_file():
                    if header not in found:
                        found[header] = None
                        todo.append(header)
                    break
    return sorted(found)


def machine_options() -> tuple[str, ...]:
    """The instructions of this machine that speed up float arithmetic, where it has them all."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return ()
    return ("-march=x86-64-v3",) if {"avx2", "fma", "f16c", "bmi2"} <= flags else ()


class Builder:
    """One build: what is in the cache is used, the rest is made side by side."""

    def __init__(self, cache: Path, include_dirs: Sequence[Path], defines: Sequence[str]):
        self.cache = cache
        self.include_dirs = [Path(folder).resolve() for folder in include_dirs]
        self.defines = list(defines)
        self.nvcc = nvcc()
        self.gxx = gxx()
        self.include = cuda_include(self.nvcc)
        self.options = (*OPTIONS, *machine_options())
        self.tools = run(self.nvcc, "--version") + run(self.gxx, "--version")
        self.translator = digest(*sorted(TRANSLATOR.glob("*.py")))
        cache.mkdir(parents=True, exist_ok=True)

    def kernel_sources(self, source: Path, arch: str) -> list[Path]:
        """The translated files of a source."""
        options = [*NVCC_OPTIONS, f"-arch=compute_{arch}", *(f"-D{name}" for name in self.defines)]
        headers = headers_of(source, self.include_dirs)
        key = digest(self.tools, self.translator, " ".join(options), source.name, source, *headers)
        folder = self.cache / f"{source.stem}_{arch}_{key}"
        if not folder.is_dir():
            made = Path(tempfile.mkdtemp(dir=self.cache))
            ptx = made / f"{source.stem}.ptx"
            run(self.nvcc, *options, *(f"-I{path}" for path in self.include_dirs), source, "-o", ptx)
            run(sys.executable, "-m", "cuda_sim.translate", ptx, arch, made)
            keep(made, folder)
        folder.touch()
        return sorted(folder.glob("*.c"))

    def compile(self, source: Path, options: Sequence[str], headers: Sequence[Path]) -> Path:
        key = digest(self.tools, " ".join((*self.options, *options)), source, *headers)
        target = self.cache / f"{source.stem}_{key}.o"
        if not target.is_file():
            handle, name = tempfile.mkstemp(suffix=".o", dir=self.cache)
            os.close(handle)
            includes = (f"-I{RUNTIME}", f"-I{self.include}")
            run(self.gxx, *self.options, *options, *includes, "-c", source, "-o", name)
            os.replace(name, target)
        target.touch()
        return target

    def build(self, sources: Iterable[tuple[Path, Sequence[str]]], output: Path, jobs: int) -> Path:
        headers = sorted(RUNTIME.glob("*.h"))
        generated_headers = [RUNTIME / "device_code.h", RUNTIME / "arithmetic.h"]
        with ThreadPoolExecutor(jobs) as pool:
            translated = [pool.submit(self.kernel_sources, s, arch) for s, arches in sources for arch in arches]
            runtime = [pool.submit(self.compile, s, RUNTIME_OPTIONS, headers) for s in sorted(RUNTIME.glob("*.cpp"))]
            kernels: list[Future[Path]] = []
            for found in translated:
                kernels += [pool.submit(self.compile, s, KERNEL_OPTIONS, generated_headers) for s in found.result()]
            objects = [future.result() for future in (*runtime, *kernels)]
        library = self.link(objects, output)
        forget_unused(self.cache)
        return library

    def link(self, objects: Sequence[Path], output: Path) -> Path:
        """The library, unless it is there already, made of the same objects."""
        text = "\n".join(map(str, objects))
        listing = output.with_name(f"{output.name}.objects")
        if output.is_file() and listing.is_file() and listing.read_text(encoding="utf-8") == text:
            return output
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            made, names = Path(folder) / "library.so", Path(folder) / "objects"
            names.write_text(text, encoding="utf-8")
            run(self.gxx, "-shared", f"@{names}", "-o", made)
            os.replace(made, output)
            os.replace(names, listing)
        return output


def forget_unused(cache: Path) -> None:
    """Removes what no build of the last days has used, each of which touches what it uses."""
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for path in cache.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:  # another process was first
            pass


def keep(made: Path, folder: Path) -> None:
    """Moves a finished folder to its place; another process may have been first."""
    try:
        made.rename(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)


def build(
    sources: Iterable[str | Path | tuple[str | Path, Sequence[str]]],
    output: str | Path,
    *,
    arches: Sequence[str] = ("80", "90a"),
    include_dirs: Sequence[str | Path] = (),
    defines: Sequence[str] = (),
    jobs: int = 2,
    cache: str | Path | None = None,
) -> Path:
    """Build the stand-in library.

    Parameters
    ----------
    sources : paths of .cu files, or pairs of a path and the arches that it is compiled for
    output : the library to write
    arches : compute capabilities to compile for; a device runs the best that suits it
    include_dirs : for quoted includes, which count for the cache
    defines : ``NAME`` or ``NAME=VALUE``
    jobs : how many compilers run at a time
    cache : where steps are kept; by default in the repository's build folder

    Raises
    ------
    MissingTool
        Where nvcc or g++ is not installed.
    BuildError
        With the message of the tool that failed.
    """
    output = Path(output).resolve()
    builder = Builder(Path(cache or CACHE).resolve(), [Path(path) for path in include_dirs], defines)
    pairs = [source if isinstance(source, tuple) else (source, arches) for source in sources]
    return builder.build([(Path(path).resolve(), own) for path, own in pairs], output, jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--arches", default="80,90a", help="separated by commas (default: 80,90a)")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-I", dest="include_dirs", type=Path, action="append", default=[])
    parser.add_argument("-D", dest="defines", action="append", default=[])
    options = vars(parser.parse_args())
    options["arches"] = options["arches"].split(",")
    given = [source.partition(":") for source in options["sources"]]
    options["sources"] = [(path, own.split(",") if own else options["arches"]) for path, _, own in given]
    try:
        print(build(options.pop("sources"), options.pop("output"), **options))
    except (MissingTool, BuildError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
