"""Tarballs whose bytes follow from their contents alone, and what else the packages share."""
import gzip
import io
import pathlib
import platform
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def version():
    run = subprocess.run([ROOT / "tools/build/version"], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()


def make_tarball(name, folder, files, links=()):
    """FOLDER/NAME-VERSION-linux-MACHINE.tar.gz, in which all lies in one folder. files: (path, bytes, whether it is a
    program); links: (path, target)."""
    stem = f"{name}-{version()}-linux-{platform.machine()}"
    path = folder / f"{stem}.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w") as tarball:
        for inside, data, executable in files:
            info = tarfile.TarInfo(f"{stem}/{inside}")
            info.size = len(data)
            info.mode = 0o755 if executable else 0o644
            tarball.addfile(info, io.BytesIO(data))
        for inside, target in links:
            info = tarfile.TarInfo(f"{stem}/{inside}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tarball.addfile(info)
    return path
