"""What the tests of wheels share: a wheel in an environment of its own, and a program that uses it."""

import subprocess
import venv

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


def members(folder):
    """The files of a package, as paths in it."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def installed(wheel, folder):
    """A fresh environment with the wheel and nothing else: its Python, the command of its pip, its packages' folder."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-index", wheel)
    run(*pip, "check")
    (packages,) = (environment / "lib").glob("python3*/site-packages")
    return python, pip, packages


def where(python, folder, **environment):
    """[version, the library's path, the module's] of a program in an empty folder."""
    return run(python, "-B", "-c", PROGRAM, cwd=folder, env={"HOME": str(folder), **environment}).split()
