"""`python -m fa3` and fa3.is_available(), with no driver, with the simulated one, which computes the kernel of the
selftest, and with stand-ins for the driver that are too old, find no GPU, or find an older one. Arguments: the library,
the simulated driver's folder, --, C compiler."""

import os
import pathlib
import subprocess
import sys
import tempfile

from support import ROOT, fa3

library, simulated, _, *compiler = sys.argv[1:]
CAN, CANNOT, WRONG = 0, 77, 1
# The simulated driver asks the program's own library for its reference.
SIMULATED = "import ctypes, sys; ctypes.CDLL(sys.argv.pop(1), mode=ctypes.RTLD_GLOBAL)\n"
MODULE = "import runpy; sys.argv[0] = 'fa3'; runpy.run_module('fa3', run_name='__main__')"
DRIVER = """
int cuInit(unsigned flags) {{ return {init} + 0 * flags; }}
int cuDriverGetVersion(int* version) {{ return *version = {version}, 0; }}
int cuDeviceGetCount(int* count) {{ return *count = {count}, 0; }}
int cuDeviceGet(int* device, int ordinal) {{ return *device = ordinal, 0; }}
int cuDeviceGetName(char* name, int size, int device) {{ return name[0] = 'A' + device, name[1] = 0 * size, 0; }}
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {{ return *bytes = 80ul << 30, device & 0; }}
int cuDeviceGetAttribute(int* value, int attribute, int device) {{
  return *value = attribute == 75 ? 8 + device : attribute == 76 ? 0 : 114, 0;
}}
"""


def ask(*words, driver="", path=library, wrapped=False):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python"), "FA3_LIBRARY": path,
                   "LD_LIBRARY_PATH": str(driver)}  # fmt: skip
    program = ["-c", SIMULATED + MODULE, path] if wrapped else ["-m", "fa3"]
    done = subprocess.run([sys.executable, "-B", *program, *words], env=environment, capture_output=True, text=True)
    code = "import fa3; print(fa3.is_available())"
    asked = subprocess.run([sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, asked.stdout.strip()


def make_driver(folder, **values):
    folder.mkdir()
    source = DRIVER.format(**{"init": 0, "version": 12040, "count": 2, **values})
    command = [*compiler, "-x", "c", "-", "-shared", "-fPIC", "-o", folder / "libcuda.so.1"]
    subprocess.run(command, input=source, text=True, check=True)
    return folder


def main():
    status, said, available = ask("--selftest", driver=simulated, wrapped=True)
    assert (status, available) == (CAN, "True"), said
    assert f"fa3 {fa3.__version__}, libfa3 {fa3.__version__}, ABI 1: {library}\n" in said, said
    assert "This machine can run the kernels." in said and " on device 0: o within" in said, said
    assert "the CPU reference: o within" in said and said.count(": ok\n") >= 2 and "WRONG" not in said, said
    status, said, available = ask(path="/none.so")
    assert (status, available) == (WRONG, "False") and "FA3_LIBRARY may name it" in said, said
    status, said, _ = ask("--help")
    assert status == 0 and "Exit status: 0" in said, said

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "broken").mkdir()
        (folder / "broken/libcuda.so.1").write_text("not a library")
        for driver, why in (
            (folder / "broken", "there is no driver: "),
            (make_driver(folder / "old", version=11080), "the driver is of CUDA 11.8, older than 12.0"),
            (make_driver(folder / "none", count=0), "the driver finds no GPU"),
            (make_driver(folder / "init", init=100), "cuInit: CUDA error 100"),
            (make_driver(folder / "ampere", count=1), "no device can run the kernels"),
        ):
            status, said, available = ask(driver=driver)
            assert (status, available) == (CANNOT, "False"), f"{why}: {status}, {available}, {said}"
            assert f"This machine cannot run the kernels: {why}" in said, said
            status, said, _ = ask("--selftest", driver=driver)
            assert status == 0 and "no kernel was run" in said, said
        status, said, available = ask(driver=make_driver(folder / "hopper"))
        assert (status, available) == (CAN, "True"), said
        assert "device 0: A, 114 multiprocessors, 80 GiB: cannot run the kernels: compute capability 8.0;" in said, said
        assert "device 1: B, 114 multiprocessors, 80 GiB: runs the kernels\n" in said, said


main()
