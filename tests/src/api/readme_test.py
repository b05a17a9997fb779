"""The examples in C of the README and the pages are at most 30 lines, compile as C11 without warnings and run: the
README's without a driver, the C page's on the simulated one; where a call fails it says which, and why. Other documents
have none.

Arguments: the build's libfa3.so, a folder with the simulated libcuda.so.1, include folders, --, C compiler.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import examples  # noqa: E402

split = sys.argv.index("--")
library, simulated, *includes = sys.argv[1:split]
compiler = sys.argv[split + 1 :]
found = examples.examples("c")
assert {name: len(programs) for name, programs in found.items()} == {"README.md": 1, "c.md": 1}, found
(CPU,), (GPU,) = found["README.md"], found["c.md"]


def build(folder, source, *libraries):
    """A program, linked with these libraries and ours."""
    lines = source.count("\n")
    assert lines <= 30, f"an example has {lines} lines"
    program = folder / "example"
    program.with_suffix(".c").write_text(source)
    command = [*compiler, "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    command += [program.with_suffix(".c"), "-o", program]
    command += [argument for folder in includes for argument in ("-isystem", folder)]
    subprocess.run([*command, library, *libraries], check=True)
    return program


def run(program, driver):
    """Exit status, output and errors, with the driver in this folder."""
    paths = os.pathsep.join([str(driver), os.path.dirname(os.path.realpath(library))])
    done = subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": paths}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def failing_driver(folder, program, name, failure):
    """One whose entry points do nothing, of which this one fails."""
    undefined = subprocess.run(["nm", "-u", program], stdout=subprocess.PIPE, check=True, text=True).stdout
    text = 'int cuGetErrorString(int error, const char** text) { return *text = "no card in the slot", error & 0; }\n'
    for entry in set(re.findall(r"\bcu\w+", undefined)) - {"cuGetErrorString"}:
        text += f"int {entry}(void) {{ return {failure if entry == name else 0}; }}\n"
    folder.mkdir()
    command = [*compiler, "-x", "c", "-", "-shared", "-fPIC", "-o", folder / "libcuda.so.1"]
    subprocess.run(command, input=text, text=True, check=True)
    return folder


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    assert run(build(folder, CPU), folder) == (0, "o[0][10][0][0] is 5, the mean of 0 to 10\n", "")
    wrong = CPU.replace("params.o = fp32(o, 4)", "params.o = fp32(o, 1)")
    status, output, errors = run(build(folder, wrong), folder)
    assert status == 1 and not output and errors.startswith("invalid argument: o.dim[2] is 1"), errors

    program = build(folder, GPU, pathlib.Path(simulated) / "libcuda.so.1")
    assert run(program, simulated) == (0, "computed\n", "")
    for entry, call in ("cuInit", "cuInit(0)"), ("cuMemAlloc_v2", "cuMemAlloc(&data, n * head_bytes)"):
        found = run(program, failing_driver(folder / entry, program, entry, 100))
        assert found == (1, "", f"{call}: no card in the slot\n"), found
    # A driver that lacks what the library needs.
    status, output, errors = run(program, failing_driver(folder / "old", program, "", 0))
    assert status == 1 and "fa3_forward_workspace_size(&params, 0, &bytes): libcuda.so.1 has no cu" in errors, errors
print("two examples, compiled and run")
