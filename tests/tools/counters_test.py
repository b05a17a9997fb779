"""tools/counters: its reading of ncu's report, its table, and a whole run under a stand-in for ncu on the simulated
driver.

Arguments: the script, the build folder, a folder with the simulated libcuda.so.1.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

script, build, simulated = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(script).parent))  # where the script finds paper.py
loader = importlib.machinery.SourceFileLoader("counters", script)
counters = importlib.util.module_from_spec(importlib.util.spec_from_loader("counters", loader))
loader.exec_module(counters)

# Runs the program it is given and reports made-up figures for each launch that program must have made.
STAND_IN = f"""#!{sys.executable}
import json, pathlib, subprocess, sys
words = sys.argv[1:]
log, metrics = words[words.index("--log-file") + 1], words[words.index("--metrics") + 1].split(",")
program = next(i for i, word in enumerate(words) if word.endswith("fa3-bench"))
done = subprocess.run(words[program:])
if done.returncode == 0:
    quoted = lambda cells: ",".join('"%s"' % cell for cell in cells)
    lines = ["==PROF== Connected", quoted(["ID", "Kernel Name"] + metrics), quoted(["", ""] + ["unit"] * len(metrics))]
    points = json.loads(pathlib.Path(words[words.index("--json") + 1]).read_text())["points"]
    for i, point in enumerate(points * {counters.LAUNCHES}):
        cells = [i, points[i // {counters.LAUNCHES}]["kernel"], "2,000", "3000"]
        lines.append(quoted(cells + ["40"] * (len(metrics) - 2)))
    pathlib.Path(log).write_text("\\n".join(lines))
sys.exit(done.returncode)
"""


def trouble(function, *arguments):
    try:
        function(*arguments)
    except counters.Trouble as found:
        return str(found)
    raise AssertionError("no trouble")


def run(**environment):
    command = [sys.executable, script, "--build", build]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


launch = {"kernel": "fa3_a", **{metric: 50.0 for metric in counters.METRICS}}
launch[counters.TIME], launch[counters.CYCLES] = 2e6, 3e6
launch.update({metric: 4e9 for metric in counters.BYTES.values()})
point = {"kernel": "fa3_a", "seqlen": 512, "tflops": 600.0, "median_ms": 1.0}
cells = counters.table_row(point, launch)
assert cells == ["fa3_a", "512", "2000", "300", "1.50", "50%", "50%", "50%", "50%", "2.00", "2.00"], cells
half = counters.table_row(point, {**launch, "kernel": "fa3_half"}, alone=False)
assert half == ["fa3_half", "512", "2000", "-", *cells[4:]], half

# Launches of each point's last call: one kernel, or two.
two = [point, {**point, "kernel": "fa3_b"}]
names = ["fa3_a"] * counters.LAUNCHES + ["fa3_b", "fa3_c"] * counters.LAUNCHES
profiled = [{"kernel": name, "number": number} for number, name in enumerate(names)]
last = counters.last_of_calls(two, profiled)
assert [[launch["number"] for launch in call] for call in last] == [[3], [10, 11]], last
assert "fa3_b where fa3-bench ran fa3_a" in trouble(counters.last_of_calls, two, profiled[counters.LAUNCHES :])
assert "nothing" in trouble(counters.last_of_calls, two, profiled[: counters.LAUNCHES])
assert "other launches" in trouble(counters.last_of_calls, two, profiled[1:])
assert "other launches" in trouble(counters.last_of_calls, two, profiled[:-1])
assert "too many" in trouble(counters.last_of_calls, two[:1], profiled)
assert "ERR_NVGPUCTRPERM" in trouble(counters.launches, "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM")

with tempfile.TemporaryDirectory() as folder:
    done = run(PATH=folder)
    assert done.returncode == counters.SKIP and "no ncu" in done.stderr, done
    ncu = pathlib.Path(folder) / "ncu"
    ncu.write_text(STAND_IN)
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    path = folder + os.pathsep + os.environ["PATH"]
    assert run(PATH=path, CUDA_VISIBLE_DEVICES="", LD_LIBRARY_PATH="").returncode == counters.SKIP
    os.environ.update(PATH=path, LD_LIBRARY_PATH=simulated)
    small = "--dtype bf16 --head-dim 128 --batch 1 --heads 1 --seqlen 64,128 --kernel auto,alg4".split()
    rows = counters.profile(argparse.Namespace(build=pathlib.Path(build)), small)
    bench = [f"{build}/tools/fa3-bench/fa3-bench", *small, "--list", "--json", "-"]
    points = json.loads(subprocess.run(bench, stdout=subprocess.PIPE).stdout)["points"]
    assert len(points) == 8 and "fa3_alg4_" in points[-1]["kernel"], points
    assert [row[:3] for row in rows] == [[point["kernel"], str(point["seqlen"]), "2"] for point in points], rows
    assert all(row[5:9] == ["40%"] * 4 for row in rows), rows
