"""Tarballs and Python wheels whose bytes follow from their contents alone, and documents for them."""
import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINES = {62: "x86_64", 183: "aarch64"}  # that libraries are built for, by their number in ELF


def version(*which):
    run = subprocess.run([ROOT / "tools/build/version", *which], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()


def document(path, packed=()):
    """The bytes of a Markdown document for a package in which only some other files lie, as they do in the sources.
    Links to others become text, with their paths in the sources."""
    def without_link(link):
        picture, text, target = link.groups()
        if target.startswith("#") or "://" in target:
            return link[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))
        if place in packed:
            return link[0]
        if picture:
            return f"(Figure: {text}, {place})"
        return place if text in (place, target) else f"{text} ({place})"

    text = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]*)\)", without_link, (ROOT / path).read_text())
    return f"{text}\nFiles that are named here and not in this package are in its sources.\n".encode()


def machine_of(library):
    """The processor that a shared library is for, as in names of wheels."""
    number = int.from_bytes(library.read_bytes()[18:20], "little")  # e_machine of ELF
    if number not in MACHINES:
        sys.exit(f"{library} is for none of {', '.join(MACHINES.values())}")
    return MACHINES[number]


def stripped(path, machine):
    """The bytes of a library for this machine without what only a debugger reads; of an archive, its names and times,
    too."""
    strip = "strip" if machine == platform.machine() else f"{machine}-linux-gnu-strip"
    how = ["--strip-debug", "--enable-deterministic-archives"] if path.suffix == ".a" else []
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([strip, *how, "-o", file.name, path], check=True)
        return pathlib.Path(file.name).read_bytes()


def write_tarball(folder, stem, name, files, links=()):
    """FOLDER/NAME, in which all lies in the folder STEM. files: (path, bytes, whether it is a program); links: (path,
    target)."""
    path = pathlib.Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
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


def make_tarball(name, folder, files, links=(), machine=platform.machine()):
    """FOLDER/NAME-VERSION-linux-MACHINE.tar.gz."""
    stem = f"{name}-{version()}-linux-{machine}"
    return write_tarball(folder, stem, f"{stem}.tar.gz", files, links)


def write_sdist(folder, name, metadata):
    """The sources, as they are in git, for pip to build from."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    paths = [ROOT / path for path in sorted(listed.rstrip("\0").split("\0"))]
    files = [(str(path.relative_to(ROOT)), path.read_bytes(), os.access(path, os.X_OK)) for path in paths]
    stem = f"{name}-{version()}"
    return write_tarball(folder, stem, f"{stem}.tar.gz", [*files, ("PKG-INFO", named(name, metadata), False)])


def named(name, metadata):
    """The bytes of METADATA. metadata: what it has after name, version and license."""
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version()}\nLicense-Expression: BSD-3-Clause\n"
    return f"{head}License-File: LICENSE\n{metadata}".encode()


def write_wheel(folder, name, tag, metadata, files):
    """The path of the wheel, for every Python 3. tag: the platforms', joined by dots. metadata: what METADATA has after
    name, version and license. files: path in the wheel, bytes, whether it is a program."""
    stem, record = f"{name.replace('-', '_')}-{version()}", []
    path = pathlib.Path(folder) / f"{stem}-py3-none-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    wheel = f"Wheel-Version: 1.0\nGenerator: {name} package\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{part}\n" for part in tag.split("."))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data, executable=False):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        for place, data, executable in files:
            add(place.format(stem=stem), data, executable)
        add(f"{stem}.dist-info/METADATA", named(name, metadata))
        add(f"{stem}.dist-info/WHEEL", wheel.encode())
        add(f"{stem}.dist-info/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        record.append(f"{stem}.dist-info/RECORD,,")
        add(f"{stem}.dist-info/RECORD", ("\n".join(record) + "\n").encode())
    return path
