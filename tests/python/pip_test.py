"""The wheel of `pip install .`: built from the sources, installed and used. Kernels are copied from a build instead of
compiled (-Ccubins), and few of them. What pip fetches for it is what tools/setup has. Settings that there are not are
refused; the sdist has all that git has.

usage: pip_test.py BUILD CUDA
"""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from wheels import installed, members, run, where

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
KERNELS = "fa3_fwd_bf16_d64_*"


def check_versions():
    """What pip fetches to build is what tools/setup installs."""
    setup = (ROOT / "tools/setup").read_text()
    nvcc = re.search(r"^nvcc_version=(\S+)$", setup, re.M)[1]
    (parts,) = re.findall(r"nvidia-\{nvvm,cuda-\{([\w,]+)\}\}==\$nvcc_version", setup)
    expected = {"nvidia-nvvm": nvcc, **{f"nvidia-cuda-{part}": nvcc for part in parts.split(",")}}
    expected["meson"] = re.search(r"\bmeson==(\S+)", setup)[1]
    project = (ROOT / "pyproject.toml").read_text()
    found = dict(re.findall(r'^  "([\w-]+)==([\d.]+)",$', project, re.M))
    assert found == expected, (found, expected)


def check_sdist(folder):
    hook = "import sys; sys.path.insert(0, 'tools/python'); import backend; print(backend.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-B", "-c", hook, folder, cwd=ROOT).strip()
    stem = name.removesuffix(".tar.gz")
    inside = {path.removeprefix(f"{stem}/") for path in tarfile.open(folder / name).getnames()}
    listed = run("git", "ls-files", cwd=ROOT).splitlines()
    assert inside == {*listed, "PKG-INFO"} and "tools/python/backend.py" in inside, inside ^ set(listed)


def main():
    check_versions()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        (folder / "bin").mkdir()
        # As in pip's own environment, Meson is a module of the Python that builds.
        (meson,) = (ROOT / ".toolchain/lib").glob("python3*/site-packages")
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(meson), "CXXFLAGS": "-O0"}
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-v", "wheel", ROOT, "-w", folder,
               "--no-deps", "--no-index", "--no-build-isolation"]  # fmt: skip
        settings = [f"-Ccuda={CUDA}", f"-Ccubins={BUILD / 'ptx'}", f"-Ckernels={KERNELS}"]
        for setting, said in (("-Ckernel=*", "there is no setting kernel, only kernels, cuda, cubins, build-dir"),
                              ("-Ckernels=fa3_*", "kernels is given 2 times, must be one text")):
            command = [*map(str, [*pip, *settings, setting])]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode != 0 and said in done.stdout + done.stderr, done
        done = subprocess.run([*map(str, [*pip, *settings])], env=environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert re.search(r"\[\d+/\d+\] Compiling C\+\+ object", output), f"no progress is shown: {output}"
        (wheel,) = folder.glob("fa3-*.whl")
        assert re.fullmatch(r"fa3-[\d.]+-py3-none-manylinux_2_28_\w+\.whl", wheel.name), wheel.name
        inside = {path for path in zipfile.ZipFile(wheel).namelist() if path.startswith("fa3/")}
        expected = {f"fa3/{path}" for path in members(ROOT / "tools/python/fa3")} | {"fa3/fa3.h", "fa3/libfa3.so.1"}
        assert inside == expected, inside ^ expected

        python, _, packages = installed(wheel, folder)
        (folder / "empty").mkdir()
        found = where(python, folder / "empty")
        assert all(path.startswith(str(packages / "fa3")) for path in found[1:]), found
        names = run(python, "-B", "-c", "import fa3; print(*[kernel.name for kernel in fa3.kernels()])").split()
        rows = [name for name in names if not name.startswith("fa3_pass_")]
        assert rows and all(name.startswith(KERNELS.rstrip("*")) for name in rows), rows
        check_sdist(folder)
        print(wheel.name)


main()
