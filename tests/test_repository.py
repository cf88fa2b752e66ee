"""The repository checks itself: versions, symbols, libraries, stubs, file sizes and doctests."""

from __future__ import annotations

import ast
import doctest
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tegula as tg
from tegula import _core

pytestmark = pytest.mark.isa_once

ROOT = Path(__file__).parents[1]
SOURCE_FOLDERS = ("csrc", "python", "tests", "bench", "examples", "tools")
SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".inl", ".cu", ".cuh", ".txt", ".toml"}
MAX_LINES = 500

# The C library, and nothing that a user would have to install.
ALLOWED_LIBRARIES = {"libc", "libm", "libpthread", "libdl", "librt", "libgcc_s", "ld-linux"}


def output_of(*command):
    """What a command prints; skips the test where the command does not exist."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def public_names(namespace):
    return {name for name in vars(namespace) if not name.startswith("_")}


# --- versions ----------------------------------------------------------------------------------------


def test_versions_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)[0] == tg.__version__
    assert tg.config()["version"] == tg.__version__


def test_version_is_written_once():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not re.search(r"^version\s*=", pyproject, re.MULTILINE)
    try:
        assert metadata.version("tegula") == tg.__version__
    except metadata.PackageNotFoundError:
        pytest.skip("tegula is imported from the source tree")


# --- compiled code -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def isa_objects(tmp_path_factory):
    """The object of each instruction set, {name: path}, from the newest build or from one of our own."""
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    newest = max(path.stat().st_mtime for path in [*sources, ROOT / "CMakeLists.txt"])
    for folder in (ROOT / "build").glob("*"):
        found = objects_in(folder)
        if found and min(path.stat().st_mtime for path in found.values()) > newest:
            return found
    folder = tmp_path_factory.mktemp("build")
    build_objects(folder)
    return objects_in(folder)


def objects_in(folder):
    paths = folder.glob("CMakeFiles/isa_*.dir/**/*.o")
    return {re.search(r"isa_(\w+)\.dir", str(path))[1]: path for path in paths}


def build_objects(folder):
    """Compile only the instruction sets' objects into `folder`."""
    pybind11 = pytest.importorskip("pybind11")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    output_of(
        "cmake",
        f"-S{ROOT}",
        f"-B{folder}",
        "-DTEGULA_CUDA=OFF",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    )
    targets = [f"isa_{name}" for name in tg.config()["isa"]["compiled"]]
    output_of("cmake", "--build", folder, "--parallel", "2", "--target", *targets)


def symbols(path, *options):
    """The names that `nm` lists, as the compiler wrote them."""
    lines = output_of("nm", "--extern-only", *options, path).splitlines()
    return {line.split()[-1] for line in lines if line.strip()}


def test_every_compiled_isa_has_an_object(isa_objects):
    assert set(isa_objects) == set(tg.config()["isa"]["compiled"])


@pytest.mark.parametrize("name", tg.config()["isa"]["compiled"])
def test_isa_object_exports_one_symbol(isa_objects, name):
    kernels = f"kernels_{name}"
    assert symbols(isa_objects[name], "--defined-only") == {f"_ZN6tegula{len(kernels)}{kernels}E"}


@pytest.mark.parametrize("name", tg.config()["isa"]["compiled"])
def test_isa_object_calls_c_functions_only(isa_objects, name):
    """A C++ function called from here could be linked for everyone as compiled for this set."""
    called = symbols(isa_objects[name], "--undefined-only")
    assert {symbol for symbol in called if symbol.startswith("_Z")} == set()


MODULES = [module for module in (_core, tg.cuda.native()) if module is not None]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_needs_the_c_library_only(module):
    """Not CUDA either: its driver is found when it is needed."""
    dynamic = output_of("readelf", "--dynamic", "--wide", module.__file__)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed, dynamic
    assert {re.match(r"(lib\w+|ld-linux)", name)[0] for name in needed} <= ALLOWED_LIBRARIES
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_exports_nothing_of_its_own(module):
    exported = symbols(module.__file__, "--dynamic", "--defined-only")
    assert f"PyInit_{module.__name__.rpartition('.')[2]}" in exported
    assert {name for name in exported if "tegula" in name} == set()


# --- the stub ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stub():
    """The definitions of _core.pyi by name: a node, or a list of them for an overloaded function."""
    tree = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found.setdefault(node.target.id, []).append(node)
    return {name: nodes for name, nodes in found.items() if not name.startswith("_")}


def parameters_of_function(function):
    """Parameter names from the signature in the first line of a pybind11 docstring."""
    signature = re.match(rf"{function.__name__}\((.*)\) -> ", function.__doc__)[1]
    depth, names, word = 0, [], ""
    for character in signature + ",":
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            names.append(word.split(":")[0].split("=")[0].strip())
            word = ""
        else:
            word += character
    return [name for name in names if name and name not in ("*", "/")]


def parameters_of_stub(node):
    arguments = node.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def test_stub_names_what_the_module_has(stub):
    assert set(stub) == public_names(_core)


@pytest.mark.parametrize(
    "name", sorted(name for name in public_names(_core) if inspect.isbuiltin(getattr(_core, name)))
)
def test_stub_names_the_parameters(stub, name):
    assert len(stub[name]) == 1
    assert parameters_of_stub(stub[name][0]) == parameters_of_function(getattr(_core, name))


# --- the text ----------------------------------------------------------------------------------------


def test_no_source_file_is_too_long():
    files = [path for name in SOURCE_FOLDERS for path in (ROOT / name).rglob("*")]
    files = [path for path in files if path.suffix in SOURCE_SUFFIXES]
    assert files
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {str(path): count for path, count in lines.items() if count > MAX_LINES} == {}


def modules():
    names = [found.name for found in pkgutil.walk_packages(tg.__path__, "tegula.")]
    return [
        "tegula",
        *(name for name in names if name.rpartition(".")[2] not in ("_core", "_cuda", "__main__")),
    ]


@pytest.mark.parametrize("name", modules())
def test_doctests(name):
    results = doctest.testmod(pytest.importorskip(name))
    assert results.failed == 0


def public_functions():
    spaces = {"tegula": tg, "tegula.masks": tg.masks}
    found = {f"{module}.{name}": getattr(space, name) for module, space in spaces.items() for name in space.__all__}
    return [pytest.param(value, id=name) for name, value in found.items() if inspect.isfunction(value)]


@pytest.mark.parametrize("function", public_functions())
def test_public_function_is_documented(function):
    """What it takes, and an example, which test_doctests runs."""
    text = inspect.getdoc(function) or ""
    assert text
    if inspect.signature(function).parameters:
        assert "Parameters\n----------" in text
        assert doctest.DocTestParser().get_examples(text), "no example"
