"""tools/ablations: its reading of the machine code's figures, its table, and whole runs without a GPU and on the
simulated driver.

Arguments: the script, the build folder, a folder with the simulated libcuda.so.1.
"""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys

script, build, simulated = sys.argv[1:]
loader = importlib.machinery.SourceFileLoader("ablations", script)
ablations = importlib.util.module_from_spec(importlib.util.spec_from_loader("ablations", loader))
loader.exec_module(ablations)


def figures():
    loop = lambda hot, **values: {"hot": hot, "figures": values}
    listing = {
        "kernels": [
            {"name": "a", "loops": [loop(True, exps=64, exps_in_flight=1), loop(False, exps=64, exps_in_flight=0)]},
            {"name": "b", "loops": [loop(True, exps=30, exps_in_flight=1), loop(True, exps=10, exps_in_flight=0)]},
            {"name": "c", "loops": [loop(True, exps=0)]},
            {"name": "d", "loops": []},
        ]
    }
    assert ablations.exps_in_flight(listing) == {"a": 1, "b": 0.75}


def rows():
    cells = [cell for cell, _, _ in ablations.KERNELS]
    assert len(set(cells)) == len(cells)
    names = {cell: "fa3_" + cell for cell in cells if cell != "alg4"}
    shares = {"fa3_fwd": 1, "fa3_alg1": 0}
    points = [{"kernel": name, "tflops": 600.04, "spread": 0.0123, "problem": ""} for name in names.values()]
    points[1]["problem"] = "o of batch 0"
    lines = dict(zip(cells, ablations.table(names, shares, {"points": points})[1:]))
    assert lines["fwd"].split()[-4:] == ["600.0", "1.2%", "-", "100%"], lines["fwd"]
    assert lines["alg1"].split()[-4:] == ["600.0", "1.2%", "582", "0%"], lines["alg1"]
    assert lines["alg2pp"].split()[-4:] == ["600.0", "1.2%", "661", "-"], lines["alg2pp"]
    assert lines["alg2asis"].split()[-4:] == ["FAILED", "-", "-", "-"], lines["alg2"]
    assert lines["alg4"].endswith("no such kernel in this build"), lines["alg4"]
    lines = dict(zip(cells, ablations.table(names, shares, None)[1:]))
    assert lines["alg1"].split()[-4:] == ["-", "-", "582", "0%"], lines["alg1"]


def run(**environment):
    """Lines of a run, by their first word."""
    command = [sys.executable, script, "--build", build]
    command += ["--batch", "1", "--seqlen", "64", "--heads", "1", "--passes", "2", "--reps", "2"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="")
    assert done.returncode == 0, done.returncode
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(cell for cell, _, _ in ablations.KERNELS) <= set(lines)
    assert lines["fwd"].endswith(" 100%"), lines["fwd"]
    return lines, done.stdout


figures()
rows()
lines, text = run(CUDA_VISIBLE_DEVICES="", LD_LIBRARY_PATH="")
assert "not run: no Hopper GPU" in text
assert lines["fwd"].split()[-4:] == ["-", "-", "-", "100%"], lines["fwd"]
lines, text = run(LD_LIBRARY_PATH=simulated)
assert "simulated" in text and "FAILED" not in text
assert "%" in lines["fwd"].split()[-3], lines["fwd"]
