"""The README's example is at most 30 lines, compiles as C11 without warnings and runs, on the simulated driver.

Arguments: README.md, the build's libfa3.so, a folder with the simulated libcuda.so.1, include folders, --, C compiler.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

split = sys.argv.index("--")
readme, library, simulated, *includes = sys.argv[1:split]
compiler = sys.argv[split + 1 :]
(example,) = re.findall(r"^```c\n(.*?)^```", pathlib.Path(readme).read_text(), re.M | re.S)
lines = example.count("\n")
assert lines <= 30, f"the example has {lines} lines"
with tempfile.TemporaryDirectory() as folder:
    source, program = pathlib.Path(folder) / "example.c", pathlib.Path(folder) / "example"
    source.write_text(example)
    driver = pathlib.Path(simulated) / "libcuda.so.1"
    command = [*compiler, "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", source, "-o", program]
    command += [argument for folder in includes for argument in ("-isystem", folder)]
    subprocess.run([*command, library, driver], check=True)
    paths = os.pathsep.join([simulated, os.path.dirname(os.path.realpath(library))])
    done = subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, f"exit status {done.returncode}: {done.stderr}"
print(f"{lines} lines, compiled and run")
