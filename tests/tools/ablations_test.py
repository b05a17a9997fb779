"""tools/ablations: its reading of the machine code's figures, its table, and whole runs without a GPU and on the
simulated driver.

Arguments: the script, the build folder, a folder with the simulated libcuda.so.1.
"""

import argparse
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys

script, build, simulated = sys.argv[1:]
tools = pathlib.Path(script).parent
sys.path[:0] = [str(tools), str(tools / "peers")]  # where the script finds paper.py, and this test the library
import paper  # noqa: E402
import prepared  # noqa: E402

loader = importlib.machinery.SourceFileLoader("ablations", script)
ablations = importlib.util.module_from_spec(importlib.util.spec_from_loader("ablations", loader))
loader.exec_module(ablations)


def algorithms():
    """What is said of the paper's algorithms is said of the kernels that the library has, all of them and no other."""
    names = [info.name for info in prepared.Library(f"{build}/src/libfa3.so").kernels()]
    assert {paper.first_cell(name) for name in names if name.startswith("fa3_alg")} == {
        *paper.ALGORITHMS,
        *paper.BACKWARD,
    }, names


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
    def point(kernel, chooses=False, problem="", **figures):
        return {"kernel": kernel, "library_chooses": chooses, "problem": problem, **figures}

    points = [
        point("fa3_alg1_bf16_d128_full_128x176", tflops=600.04, spread=0.0123),
        point("fa3_alg1_bf16_d128_full_128x96", tflops=500.0, spread=0.5),  # of one algorithm another tile
        point("fa3_alg4_bf16_d128_full", problem="o of batch 0", tflops=0, spread=0),
        point("fa3_alg2pp_bf16_d128_full"),  # without a GPU
        point("fa3_alg2_bf16_d128_full_192x64", chooses=True, tflops=700.0, spread=0.0),
    ]
    shares = {points[0]["kernel"]: 0, points[4]["kernel"]: 1}
    lines = [line.split() for line in ablations.table(points, shares)[1:]]
    assert [line[0] for line in lines] == [point["kernel"] for point in points], lines
    assert [line[-4:] for line in lines] == [
        ["600.0", "1.2%", "582", "0%"],
        ["500.0", "50.0%", "582", "-"],
        ["FAILED", "-", "-", "-"],
        ["-", "-", "661", "-"],
        ["700.0", "0.0%", "-", "100%"],
    ], lines
    assert "without pingpong" in " ".join(lines[0]) and "library's own" in " ".join(lines[4]), lines


def run(**environment):
    """The lines of a run's tables, in each the library's own choice last."""
    command = [sys.executable, script, "--build", build]
    command += ["--batch", "1", "--seqlen", "320", "--heads", "1", "--passes", "2", "--reps", "2"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="")
    assert done.returncode == 0, done.returncode
    lines = [line for line in done.stdout.splitlines() if line.startswith("fa3_")]
    for direction, last in (("fwd", len(lines) - len(paper.BACKWARD) - 2), ("bwd", len(lines) - 1)):
        algorithms = paper.DIRECTIONS[direction]
        assert {paper.first_cell(line) for line in lines[last - len(algorithms) : last]} == set(algorithms), lines
        assert "the library's own choice" in lines[last], lines
        assert lines[last].endswith(" 100%" if direction == "fwd" else "%"), lines
    return lines, done.stdout


def table_2():
    """Without another point, the paper's; by every algorithm and the library's own choice."""
    options = argparse.Namespace(build=pathlib.Path(build), point=paper.TABLE_2)
    status, plan = ablations.bench(options, "fwd", "--list")
    labels = {point["label"].removesuffix(" " + point["kernel"]) for point in plan["points"]}
    assert (status, labels) == (0, {"bf16 d128 full batch 4 seqlen 8448 heads 16/16"}), plan
    assert [point["library_chooses"] for point in plan["points"]].count(True) == 1, plan
    done = subprocess.run([sys.executable, script, "--build", build, "--seqlen", "64"], capture_output=True, text=True)
    assert done.returncode == 2 and "--batch, --seqlen and --heads" in done.stderr, done


algorithms()
figures()
rows()
table_2()
lines, text = run(CUDA_VISIBLE_DEVICES="", LD_LIBRARY_PATH="")
assert text.startswith("bf16 d128 full batch 1 seqlen 320 heads 1/1; not run: no Hopper GPU"), text
assert all(line.split()[-4:-2] == ["-", "-"] for line in lines), lines
lines, text = run(LD_LIBRARY_PATH=simulated)
assert "simulated" in text and "FAILED" not in text
assert all("%" in line.split()[-3] for line in lines), lines
