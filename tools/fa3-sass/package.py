#!/usr/bin/env python3
"""Packs a built fa3-sass and its contracts, as a wheel and as a tarball. The same program gives the same bytes.

usage: package.py PROGRAM FOLDER
"""
import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
METADATA = """Metadata-Version: 2.1
Name: fa3-sass
Version: {version}
Summary: What the compiler made of CUDA kernels for Hopper, and whether that is what was meant
License: BSD-3-Clause
Requires-Dist: nvidia-cuda-nvdisasm
Requires-Dist: nvidia-cuda-cuobjdump
Description-Content-Type: text/markdown

"""
WHEEL = """Wheel-Version: 1.0
Generator: fa3-sass package
Root-Is-Purelib: false
"""


def installed(program):
    """What belongs below a prefix: path, bytes, whether it is a program."""
    yield "bin/fa3-sass", program.read_bytes(), True
    for contract in sorted((ROOT / "ptx/kernels").glob("*.contract")):
        yield f"share/fa3/contracts/{contract.name}", contract.read_bytes(), False


def make_wheel(program, folder, version):
    machine = platform.machine()
    tag = f"manylinux_2_17_{machine}.manylinux2014_{machine}"
    stem, record = f"fa3_sass-{version}", []
    path = folder / f"{stem}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, executable=False):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        for name, data, executable in installed(program):
            place = name.replace("bin/", "scripts/", 1) if executable else f"data/{name}"
            add(f"{stem}.data/{place}", data, executable)
        readme = (ROOT / "tools/fa3-sass/README.md").read_text()
        add(f"{stem}.dist-info/METADATA", (METADATA.format(version=version) + readme).encode())
        tags = "".join(f"Tag: py3-none-{part}\n" for part in tag.split("."))
        add(f"{stem}.dist-info/WHEEL", (WHEEL + tags).encode())
        add(f"{stem}.dist-info/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        record.append(f"{stem}.dist-info/RECORD,,")
        add(f"{stem}.dist-info/RECORD", ("\n".join(record) + "\n").encode())
    return path


def make_tarball(program, folder, version):
    stem = f"fa3-sass-{version}-linux-{platform.machine()}"
    path = folder / f"{stem}.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed, \
            tarfile.open(fileobj=packed, mode="w") as tarball:
        def add(name, data, executable=False):
            info = tarfile.TarInfo(f"{stem}/{name}")
            info.size = len(data)
            info.mode = 0o755 if executable else 0o644
            tarball.addfile(info, io.BytesIO(data))

        for name, data, executable in installed(program):
            add(name, data, executable)
        for name in ("tools/fa3-sass/README.md", "LICENSE"):
            add(os.path.basename(name), (ROOT / name).read_bytes())
    return path


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    version = subprocess.run([ROOT / "tools/build/version"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.strip()
    folder.mkdir(parents=True, exist_ok=True)
    for make in (make_wheel, make_tarball):
        print(make(program, folder, version))


if __name__ == "__main__":
    main()
