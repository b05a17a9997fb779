"""What the packaging tests share: a package of the build, unpacked, and programs that use it."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import links  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MESON = shutil.which("meson") or ROOT / ".toolchain/bin/meson"
os.environ.pop("LD_LIBRARY_PATH", None)  # in tests it leads to the build's library


def need(condition, what):
    if not condition:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {what}")


def run(*command, status=0, **options):
    """The output. Another exit status than this ends the test."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    need(done.returncode == status, f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def make_package(build, folder):
    return pathlib.Path(run(sys.executable, "-B", ROOT / "tools/package.py", build, folder).splitlines()[-1])


@contextmanager
def unpacked(build):
    """A package, its root, and a folder to work in."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        package = make_package(build, folder / "made")
        run("tar", "-xzf", package, "-C", folder)
        (root,) = folder.glob("libfa3-*")
        yield package, root, folder


def pkg_config(root, *words):
    """What pkg-config says of this package and no other."""
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(root / "lib/pkgconfig"), "PKG_CONFIG_PATH": ""}
    return run("pkg-config", *words, "fa3", env=environment).split()


def check_client(program, library=None):
    """It runs, with this shared library or with none of ours; and needs nothing else but the C library."""
    need(run(program).endswith(": ok\n"), f"{program} says nothing")
    used = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", program), re.M))
    found = used.pop("libfa3.so.1", None)
    need(pathlib.Path(found or "").resolve() == pathlib.Path(library or "").resolve(),
         f"{program} runs with {found}, not with {library}")
    foreign = [name for name in used if not re.match(r"(libc|libm|libdl|libpthread|linux-vdso)\.so", name)]
    need(not foreign, f"{program} needs {foreign}")
