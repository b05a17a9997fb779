"""The wheel of fa3 as people get it: made twice with the same bytes, its metadata, installed into a fresh environment,
used from another folder, uninstalled; and the folder fa3/ copied without it. Arguments: package.py, the library."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from wheels import PROGRAM, installed, members, run, where

package, library = (pathlib.Path(word).resolve() for word in sys.argv[1:])
ROOT = package.parents[2]
METADATA = """Metadata-Version: 2.4
Name: fa3
Version: {version}
License-Expression: BSD-3-Clause
License-File: LICENSE
"""
NEEDY = {  # what is not packed, and what is said of it
    "#include <iostream>\nvoid f() { std::cout << 1; }": "libstdc++",
    '#include <cmath>\nextern "C" double f(double x) { return std::exp(x); }': "needs exp of glibc 2.29",
}
# What vLLM does with its plugins.
PLUGIN = """
from importlib.metadata import distribution
for point in distribution("fa3").entry_points:
    point.load()()
    print(point.group, point.name)
"""


def newest_glibc():
    """The newest version of glibc in the library's dynamic symbols, by another program than package.py's."""
    symbols = run("objdump", "-T", library)
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"\(?GLIBC_([0-9.]+)\)?", symbols))


def check_metadata(wheel, version):
    inside = zipfile.ZipFile(wheel)
    text = inside.read(f"fa3-{version}.dist-info/METADATA").decode()
    head = METADATA.format(version=version)
    assert text.startswith(head), text[:500]
    for line in ('Provides-Extra: torch', 'Requires-Dist: torch>=2.4; extra == "torch"', "Requires-Python: >=3.9",
                 "Classifier: Typing :: Typed", "Project-URL: Paper, https://arxiv.org/abs/2407.08608",
                 "\n# libfa3"):  # fmt: skip
        assert f"\n{line}\n" in text, f"{line} is missing: {text[:2000]}"
    plugins = inside.read(f"fa3-{version}.dist-info/entry_points.txt").decode()
    assert plugins == "[vllm.general_plugins]\nfa3 = fa3._as:plugin\n", plugins
    assert "](tools/" not in text, "links to what is in no wheel"
    (size,) = (info.file_size for info in inside.infolist() if ".so" in info.filename)
    assert size < library.stat().st_size, "the library is not stripped"


def main():
    version = run(ROOT / "tools/build/version").strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        made = [folder / "one", folder / "again"]
        wheels = [pathlib.Path(run(sys.executable, "-B", package, library, place).strip()) for place in made]
        assert wheels[0].read_bytes() == wheels[1].read_bytes(), "another wheel, when made again"
        assert wheels[0].name == f"fa3-{version}-py3-none-manylinux_2_28_x86_64.whl", wheels[0].name
        assert newest_glibc() <= (2, 28), f"the library needs glibc {newest_glibc()}"
        check_metadata(wheels[0], version)

        empty = folder / "empty"
        empty.mkdir()
        python, pip, packages = installed(wheels[0], folder)
        inside = str(packages / "fa3")
        found = where(python, empty)
        assert found[0] == version and all(path.startswith(inside) for path in found[1:]), found
        # FA3_LIBRARY comes first.
        other = shutil.copy(library, folder / "other.so")
        assert where(python, empty, FA3_LIBRARY=str(other))[1] == str(other)
        said = run(python, "-B", "-m", "fa3", "--selftest", cwd=empty, env={"HOME": str(folder)})
        assert f"fa3 {version}, libfa3 {version}, ABI 1: {inside}" in said, said
        assert "the CPU reference: o within" in said, said
        assert run(python, "-B", "-c", "import fa3; print(fa3.__version__)", cwd=empty).strip() == version
        assert run(python, "-B", "-c", PLUGIN, cwd=empty) == "vllm.general_plugins fa3\n"
        listed = run(*pip, "show", "-f", "fa3")
        assert "fa3/_frameworks/torch.py" in listed and "fa3/fa3.h" in listed, listed
        sources = members(ROOT / "tools/python/fa3")
        assert members(packages / "fa3") == sources | {"fa3.h", "libfa3.so.1"}, members(packages / "fa3") ^ sources
        assert {"distributed/__init__.py", "_calls/functions.py", "py.typed"} <= sources, sources
        run(*pip, "uninstall", "-q", "-y", "fa3")
        assert not list(packages.glob("fa3*")), list(packages.glob("fa3*"))

        # The folder alone: a library in it, beside it, or where the loader looks.
        copied = folder / "copied"
        shutil.copytree(ROOT / "tools/python/fa3", copied / "fa3", ignore=shutil.ignore_patterns("__pycache__"))
        search = {"PYTHONPATH": str(copied)}
        for place in (copied / "fa3/libfa3.so", copied / "libfa3.so", copied / "libfa3.so.1"):
            shutil.copy(library, place)
            assert where(python, empty, **search)[1] == str(place), place
            place.unlink()
        loaded = folder / "loaded"
        loaded.mkdir()
        shutil.copy(library, loaded / "libfa3.so.1")
        assert where(python, empty, LD_LIBRARY_PATH=str(loaded), **search)[1] == "libfa3.so.1"
        done = subprocess.run([python, "-B", "-c", PROGRAM], cwd=empty, env=search, capture_output=True, text=True)
        assert "FA3_LIBRARY may name it" in done.stderr or done.returncode == 0, done.stderr  # if one is installed here

        for source, said in NEEDY.items():
            needy = folder / "needy.so"
            run(os.environ.get("CXX", "g++"), "-shared", "-x", "c++", "-", "-o", needy, "-fPIC", input=source)
            command = [sys.executable, "-B", package, needy, folder / "none"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode != 0 and said in done.stderr, done.stderr
    print(wheels[0].name)


main()
