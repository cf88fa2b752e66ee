"""The benchmarks work: every suite runs at tiny sizes, and what they say follows from what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.isa_once

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))
import grid_cases  # noqa: E402
import job  # noqa: E402
import report  # noqa: E402
import result as results  # noqa: E402
import timing  # noqa: E402

TORCH, OURS = "torch", job.OURS


def timed(name, side, *seconds):
    return results.Timing(name=name, side=side, seconds=list(seconds), work=1e9, error=0.0, tolerance=1.0)


def measured(*timings, targets=(), **options):
    judged = [results.Judged(str(target)) for target in targets]
    return results.Result("forward", "case", "float32", 2, "avx512", timings=list(timings), targets=judged, **options)


# --- the grid ----------------------------------------------------------------------------------------


def test_grid_is_large_and_has_no_case_twice():
    cases = grid_cases.cases()
    assert len(cases) >= 200
    assert len({(case.name, case.dtype) for case in cases}) == len(cases)
    assert cases == grid_cases.cases()


def test_grid_turns_every_knob():
    cases = grid_cases.cases()
    assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
    assert {case.threads for case in cases} == {1, 2}
    assert {case.tensors for case in cases} == {case.backward for case in cases} == {True, False}
    assert {case.layout for case in cases} == {"bhld", "blhd"}
    lengths = {length for case in cases for length in case.lengths}
    assert {1, 16384} <= lengths
    assert any(case.dim % 2 for case in cases)
    assert min(case.dim for case in cases) == 16
    assert max(case.dim for case in cases) == 256
    assert any(case.value_dim for case in cases)
    assert any(case.groups == 1 for case in cases)
    assert any(case.dropout_p for case in cases)
    assert any(case.bias for case in cases)
    assert any(case.k_len is not None and case.k_len != case.q_len for case in cases)


# --- targets and tables ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "text", "good", "bad"),
    [
        (job.share(80), ">= 80 %", dict(share=0.81), dict(share=0.79)),
        (job.ratio(2), ">= 2x torch", dict(other=2.1), dict(other=1.9)),
        (job.at_most(1.5, "copy"), "<= 1.5x copy", dict(other=0.7), dict(other=0.6)),
        (job.microseconds(2e6), "<= 2e+06 us", dict(seconds=1.9), dict(seconds=2.1)),
    ],
)
def test_target(target, text, good, bad):
    known = dict(seconds=1.0, share=None, other=None)
    assert str(target) == text
    assert target.met(**{**known, **good}) is True
    assert target.met(**{**known, **bad}) is False
    if target.kind != "microseconds":
        assert target.met(**known) is None


def test_fastest_way_of_a_peer_counts():
    case = measured(timed("", OURS, 1.0, 1.5), timed("a", TORCH, 4.0), timed("b", TORCH, 3.0, 5.0))
    assert case.peer.name == "b"
    assert report.rows([case])[0][5] == "3.00x (3.20)"


def test_summary_shows_targets_beside_numbers_and_a_dash_for_what_is_missing():
    targets = (job.share(50), job.ratio(2), job.ratio(1.4, "onnxruntime"))
    case = measured(timed("", OURS, 0.5), timed("a", TORCH, 1.5), targets=targets, ceiling_rates=[4e9])
    for judged, met in zip(case.targets, (True, True, None), strict=True):
        judged.met = met
    header, (line,) = report.summary([case])
    cells = dict(zip(header, line, strict=True))
    assert cells["of peak"] == "50.0 % (>= 50 yes)"
    assert cells["torch"] == "3.00x (>= 2x yes)"
    assert cells["onnxruntime"] == "- (>= 1.4x -)"


def test_markdown_table_has_a_cell_for_every_column():
    lines = report.markdown(["a", "b"], [["1", "2"], ["333", ""]]).splitlines()
    assert [line.count("|") for line in lines] == [3, 3, 3, 3]


def test_saved_results_are_loaded_again(tmp_path):
    case = measured(timed("", OURS, 0.5), targets=(job.share(50),))
    results.save(tmp_path / "run.json", {"cores": 2}, {}, [case])
    machine, loaded = results.load(tmp_path / "run.json")
    assert machine == {"cores": 2}
    assert loaded == {case.key: case}


def test_slow_contenders_lose_patience_but_keep_two_samples():
    ours, slow = timing.Timed(lambda: None), timing.Timed(lambda: timing.time.sleep(0.002))
    samples, _ = timing.interleave([ours, slow], 5, idle_bound=0.0, gap=0.0, patience=0.001)
    assert [len(kept.seconds) for kept in samples] == [5, 2]


# --- the whole ---------------------------------------------------------------------------------------


def test_tiny_run_writes_samples_tables_and_plot(tmp_path):
    """One process: every suite, torch where it is installed, and a part of the grid."""
    path = tmp_path / "run.json"
    command = [sys.executable, BENCH / "run.py", "--tiny", "--repeat", "1", "--threads", "1"]
    command += ["--peers", "torch", "--json", path]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MPLCONFIGDIR": str(tmp_path),
    }
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text(encoding="utf-8"))
    assert {entry["suite"] for entry in data["results"]} == {
        "forward",
        "backward",
        "masks",
        "decode",
        "embedding",
        "latency",
    }
    assert all(entry["timings"] or entry["note"].startswith("skipped") for entry in data["results"])
    assert path.with_suffix(".md").read_text(encoding="utf-8").count("| case ") >= 7
    if data["grid"]:
        assert all(entry["ours"] and entry["torch"] for entry in data["grid"])
        assert "smallest ratio" in done.stdout
