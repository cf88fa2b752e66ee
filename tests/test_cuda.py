"""The package on a simulated GPU: each file of tests/cuda in a process of its own.

There torch believes in a GPU, and a kernel that goes wrong takes only its own process with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tegula as tg

HERE = Path(__file__).resolve().parent / "cuda"
pytestmark = pytest.mark.isa_once

if not tg.cuda.is_built():
    pytest.skip("tegula was built without CUDA kernels: no nvcc 13.0 was found", allow_module_level=True)
for tool in ("nvcc", "g++"):
    if shutil.which(tool) is None and shutil.which(tool, path="/usr/local/cuda/bin") is None:
        pytest.skip(f"kernels cannot be simulated: {tool} is not installed", allow_module_level=True)


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("cuda_*.py")))
def test_on_a_simulated_gpu(name):
    command = (sys.executable, "-m", "pytest", "-q", "--rootdir", HERE, "--confcutdir", HERE, HERE / name)
    done = subprocess.run(
        [*map(str, command), "-o", "python_files=cuda_*.py", "-p", "no:cacheprovider"], capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
