"""The wheel of `pip install .`: built by meson-python from the sources with the versions that tools/setup has,
installed and used. Kernels are copied from a build instead of compiled, and few of them. Skipped without meson-python.

usage: pip_test.py BUILD CUDA
"""

import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import zipfile

from wheels import installed, members, run, where

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/packaging"))
from packages import copying_cuda  # noqa: E402

BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
KERNELS = "fa3_fwd_bf16_d64_*"


def check_versions():
    """What pip fetches to build is what tools/setup installs."""
    setup = (ROOT / "tools/setup").read_text()
    nvcc = re.search(r"^nvcc_version=(\S+)$", setup, re.M)[1]
    (parts,) = re.findall(r"nvidia-\{nvvm,cuda-\{([\w,]+)\}\}==\$nvcc_version", setup)
    expected = {"nvidia-nvvm": nvcc, **{f"nvidia-cuda-{part}": nvcc for part in parts.split(",")}}
    for package in "meson", "meson-python":
        expected[package] = re.search(rf"\b{package.replace('-', '[-_]')}==(\S+)", setup)[1].rstrip('"')
    project = (ROOT / "pyproject.toml").read_text()
    found = dict(re.findall(r'^  "([\w-]+)==([\d.]+)",$', project, re.M))
    assert found == expected, (found, expected)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert cited == run(ROOT / "tools/build/version").strip(), cited


def main():
    check_versions()
    if not importlib.util.find_spec("mesonpy"):
        print("SKIPPED: no meson-python (tools/setup tests)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        cuda = copying_cuda(folder / "cuda", BUILD, CUDA)
        setup = [f"-Csetup-args=-D{option}" for option in (f"cuda={cuda}", f"kernels={KERNELS}", "optimization=0")]
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", ROOT, "-w", folder, "--no-deps",
            "--no-index", "--no-build-isolation", f"-Cbuild-dir={folder / 'build'}", *setup,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
        (wheel,) = folder.glob("fa3-*.whl")
        inside = {path for path in zipfile.ZipFile(wheel).namelist() if path.startswith("fa3/")}
        module = {f"fa3/{path}" for path in members(ROOT / "tools/python/fa3")}
        expected = module | {"fa3/fa3.h", "fa3/libfa3.so.1"}
        assert inside == expected, f"tools/python/meson.build names other files: {inside ^ expected}"

        python, _, packages = installed(wheel, folder)
        (folder / "empty").mkdir()
        found = where(python, folder / "empty")
        assert all(path.startswith(str(packages / "fa3")) for path in found[1:]), found
        names = run(python, "-B", "-c", "import fa3; print(*[kernel.name for kernel in fa3.kernels()])").split()
        rows = [name for name in names if not name.startswith("fa3_pass_")]
        assert rows and all(name.startswith(KERNELS.rstrip("*")) for name in rows), rows
        print(wheel.name)


main()
