#!/usr/bin/env bash
# What only a GPU can show, in one run of at most 8 minutes: correctness, memory checks, speed beside
# torch's kernels, and what limits ours.
#
#   bench/gpu_check.sh [RESULTS]
#
# Needs a GPU, its driver, nvcc 13.0 or later and a torch with CUDA in the Python named by PYTHON.
# Every step has a limit of its own and leaves RESULTS/<step>.txt; one that fails does not keep the
# others from running. RESULTS/summary.txt says how each ended. Where the package is not installed
# with CUDA, it is built first, for the card at hand alone, which counts for the 8 minutes.
#
# Two files are made for the repository: docs/gpu_results.xml, of which tools/device_table.py makes the
# table, and tests/cuda_sim/golden_smXX.npz, the bits that the simulator is then held to.
set -u
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:-build/gpu_check}" && cd "${1:-build/gpu_check}" && pwd)
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
: > "$results/summary.txt"

step() { # name, seconds, command
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  echo "== $name"
  timeout "$limit" "$@" > "$results/$name.txt" 2>&1
  code=$?
  tail -n "${LINES_SHOWN:-4}" "$results/$name.txt"
  printf '%-14s exit %3d  %4d s\n' "$name" "$code" "$((SECONDS - begin))" | tee -a "$results/summary.txt"
}

card() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .; }
target() { case $(card) in 90) echo 90a ;; *) card ;; esac; }

step environment 20 bash -c "nvidia-smi; nvcc --version | tail -2; which compute-sanitizer ncu
  $python -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())'"
if ! $python -c 'import tegula as tg; assert tg.cuda.is_available(), tg.cuda.unavailable_reason()' 2> /dev/null; then
  TEGULA_CUDA=ON step build 240 "$python" -m pip install . -C "cmake.define.TEGULA_CUDA_TARGETS=$(target)"
fi
step smoke 30 "$python" bench/gpu_smoke.py
for tool in memcheck racecheck synccheck initcheck; do
  step "$tool" 45 compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" bench/gpu_smoke.py --small
done
TEGULA_TEST_GPU=real step instructions 40 "$python" -m pytest -q --rootdir tests --confcutdir tests/cuda_sim \
  tests/cuda_sim/test_instructions.py tests/cuda_sim/test_matrices.py
PYTHONPATH=tests step golden 40 "$python" -m cuda_sim.golden tests/cuda_sim
TEGULA_TEST_GPU=real step correct 150 "$python" -m pytest -q -x --rootdir tests/cuda --confcutdir tests/cuda \
  -o 'python_files=cuda_*.py' tests/cuda
TEGULA_TEST_GPU=real step table 60 "$python" -m pytest -q --rootdir tests/cuda --confcutdir tests/cuda \
  -o 'python_files=cuda_*.py' --junitxml=docs/gpu_results.xml tests/cuda/cuda_table.py
LINES_SHOWN=40 step speed 150 "$python" bench/gpu_speed.py --save "$results/speed.json"
step limits 60 ncu --clock-control none -k 'regex:attention_' -c 6 --section SpeedOfLight \
  --section WarpStateStats --section MemoryWorkloadAnalysis "$python" bench/gpu_smoke.py --small
echo "-- $SECONDS s in all"
cat "$results/summary.txt"
! grep -qv 'exit   0' "$results/summary.txt"
