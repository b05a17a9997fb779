"""What pip calls to build fa3 (PEP 517): the library by Meson, then the wheel as tools/python/package makes it.

Settings: -Ckernels=PATTERNS, -Ccuda=FOLDER and -Ccubins=FOLDER are the options of meson.options by these names;
-Cbuild-dir=FOLDER keeps what was built, so that the next build is quick."""
import contextlib
import pathlib
import subprocess
import sys
import tempfile

import package
from package import ROOT, packing

OPTIONS = ("kernels", "cuda", "cubins")
MESON = [sys.executable, "-m", "mesonbuild.mesonmain"]


def checked(config_settings):
    settings = dict(config_settings or {})
    for name, value in settings.items():
        if name not in (*OPTIONS, "build-dir"):
            raise ValueError(f"there is no setting {name}, only {', '.join((*OPTIONS, 'build-dir'))}")
        if not isinstance(value, str):
            raise ValueError(f"{name} is given {len(value)} times, must be one text; patterns have commas between them")
    return settings


def cuda_compiler():
    """The folder of the compiler that pip put beside this Python."""
    done = subprocess.run([ROOT / "tools/build/find-cuda", sys.executable], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError("no CUDA compiler: name a toolkit (13.0 or newer) with -Ccuda=FOLDER")
    return done.stdout.strip()


@contextlib.contextmanager
def build_folder(name):
    if name:
        yield pathlib.Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = checked(config_settings)
    with build_folder(settings.pop("build-dir", None)) as folder:
        options = {"library_alone": "true", "default_library": "shared",
                   "cuda": settings.get("cuda") or cuda_compiler(), **settings}  # fmt: skip
        again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
        subprocess.run([*MESON, "setup", *again, folder, ROOT, *(f"-D{name}={x}" for name, x in options.items())],
                       check=True)  # fmt: skip
        print("fa3: building the library; with all kernels some ten minutes on two cores", flush=True)
        subprocess.run([*MESON, "compile", "-C", folder, "fa3:shared_library"], check=True)
        return package.pack(folder / "src/libfa3.so", wheel_directory).name


def build_sdist(sdist_directory, config_settings=None):
    return packing.write_sdist(sdist_directory, "fa3", package.metadata()).name
