#!/usr/bin/env python3
"""fa3-sass as people get it who have nothing else of this project: its wheel and its tarball.

usage: alone.py FA3_SASS PACKAGE.PY NVDISASM CUBIN

The packages are made of this program. The wheel is installed into a fresh environment, in which nvdisasm lies where its
own wheel puts it, and must read the cubin from there, with nothing on PATH and outside of the sources.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import links  # noqa: E402

def output(command, **options):
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         **options)
    return run.returncode, run.stdout


def need(condition, what):
    if not condition:
        sys.exit(f"alone.py: {what}")


def check_program(program, cubin, cwd):
    """The contracts must be found, too: that the cubin is no row of the table is what is left to say."""
    environment = {"HOME": str(cwd)}
    status, text = output([program, "list", cubin], env=environment, cwd=cwd)
    need(status == 0 and "miniature" in text, f"{program} list: {text}")
    status, text = output([program, "check", cubin], env=environment, cwd=cwd)
    need(status == 1 and "every row is a kernel" in text, f"{program} check: {text}")


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    program, package, nvdisasm, cubin = (pathlib.Path(word).absolute() for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made = [folder / "one", folder / "again"]
        for place in made:
            subprocess.run([sys.executable, "-B", package, program, place], check=True, stdout=subprocess.DEVNULL)
        (wheel,), (tarball,) = made[0].glob("*.whl"), made[0].glob("*.tar.gz")
        for path in wheel, tarball:
            need(path.read_bytes() == (made[1] / path.name).read_bytes(), f"{path.name} differs when it is made again")

        environment = folder / "environment"
        venv.create(environment, with_pip=True)
        python = environment / "bin/python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check",
                        wheel], check=True)
        status, text = output([environment / "bin/fa3-sass", "list", cubin], env={"HOME": name}, cwd=folder)
        need(status == 0 or "no nvdisasm found" in text, f"without nvdisasm: {text}")  # unless this machine has one
        packages = next((environment / "lib").glob("python3*/site-packages"))
        (packages / "nvidia/cu13/bin").mkdir(parents=True)
        os.symlink(nvdisasm, packages / "nvidia/cu13/bin/nvdisasm")
        check_program(environment / "bin/fa3-sass", cubin, folder)
        status, text = output([python, "-m", "pip", "show", "--disable-pip-version-check", "fa3-sass"])
        need("nvidia-cuda-nvdisasm" in text, f"the wheel does not ask for nvdisasm: {text}")

        subprocess.run(["tar", "-xzf", tarball, "-C", folder], check=True)
        unpacked = next(folder.glob("fa3-sass-*"))
        status, text = output([unpacked / "bin/fa3-sass", "list", cubin], cwd=folder,
                              env={"HOME": name, "PATH": str(packages / "nvidia/cu13/bin")})
        need(status == 0 and "miniature" in text, f"from the tarball: {text}")
        dead = links.dead(unpacked / "README.md", unpacked)
        need(not dead, f"links that lead nowhere: {dead}")
        need((unpacked / "share/fa3/contracts/fwd.contract").is_file(), "no contracts in the tarball")


if __name__ == "__main__":
    main()
