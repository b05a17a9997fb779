"""The wheel of fa3 as people get it: made twice with the same bytes, installed into a fresh environment, used from
another folder, uninstalled; and the folder fa3/ copied without it. Arguments: package.py, the library."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

package, library = (pathlib.Path(word).resolve() for word in sys.argv[1:])
ROOT = package.parents[2]
# With nothing but the standard library: attention of one query over two keys, of which V is 1 and 3, by the reference.
PROGRAM = """
import ctypes, math, sys
import fa3
floats = lambda *x: (ctypes.c_float * len(x))(*x)
q, k, v, o, lse = floats(1, 1), floats(0, 0, math.log(3), 0), floats(1, 2, 3, 6), floats(0, 0), floats(0)
tensor = lambda x, *dims: fa3.make_tensor(ctypes.addressof(x), "float32", dims)
tensors = {"q": tensor(q, 1, 1, 1, 2), "k": tensor(k, 1, 2, 1, 2), "v": tensor(v, 1, 2, 1, 2)}
tensors["o"] = tensor(o, 1, 1, 1, 2)
fa3.library().reference(fa3.ForwardParams(**tensors, lse=tensor(lse, 1, 1, 1), softmax_scale=1.0))
assert max(abs(o[0] - 2.5), abs(o[1] - 5), abs(lse[0] - math.log(4))) < 1e-6, (list(o), list(lse))
try:
    fa3.library().reference(fa3.ForwardParams(**tensors, mask=9))
except ValueError as error:
    assert "mask is 9" in str(error), error
else:
    raise AssertionError("mask 9 was accepted")
print(fa3.version(), fa3.library().path, fa3.__file__)
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command[1:4]}: exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def where(python, folder, **environment):
    """[version, the library's path, the module's] of a program in an empty folder."""
    return run(python, "-B", "-c", PROGRAM, cwd=folder, env={"HOME": str(folder), **environment}).split()


def newest_glibc():
    """The newest version of glibc in the library's dynamic symbols, by another program than package.py's."""
    symbols = run("objdump", "-T", library)
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"\(?GLIBC_([0-9.]+)\)?", symbols))


def modules(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


def main():
    version = run(ROOT / "tools/build/version").strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        made = [folder / "one", folder / "again"]
        wheels = [pathlib.Path(run(sys.executable, "-B", package, library, place).strip()) for place in made]
        assert wheels[0].read_bytes() == wheels[1].read_bytes(), "another wheel, when made again"
        tag = "manylinux_{}_{}".format(*newest_glibc()[:2])
        assert wheels[0].name == f"fa3-{version}-py3-none-{tag}_x86_64.whl", (wheels[0].name, tag)

        environment, empty = folder / "environment", folder / "empty"
        empty.mkdir()
        venv.create(environment, with_pip=True)
        python = environment / "bin/python"
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        run(*pip, "install", "-q", "--no-index", wheels[0])
        run(*pip, "check")
        (packages,) = (environment / "lib").glob("python3*/site-packages")
        inside = str(packages / "fa3")
        found = where(python, empty)
        assert found[0] == version and all(path.startswith(inside) for path in found[1:]), found
        # FA3_LIBRARY comes first.
        other = shutil.copy(library, folder / "other.so")
        assert where(python, empty, FA3_LIBRARY=str(other))[1] == str(other)
        listed = run(*pip, "show", "-f", "fa3")
        assert "BSD-3-Clause" in listed and "fa3/_torch.py" in listed and "fa3/fa3.h" in listed, listed
        sources = modules(ROOT / "tools/python/fa3")
        assert sources == modules(packages / "fa3") and "distributed/__init__.py" in sources, sources
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

        # A library that needs more than glibc is not packed.
        needy = folder / "needy.so"
        run(os.environ.get("CXX", "g++"), "-shared", "-x", "c++", "-", "-o", needy, "-fPIC",
            input="#include <iostream>\nvoid f() { std::cout << 1; }")  # fmt: skip
        done = subprocess.run([sys.executable, "-B", package, needy, folder / "none"], capture_output=True, text=True)
        assert done.returncode != 0 and "libstdc++" in done.stderr, done.stderr
    print(wheels[0].name)


main()
