"""Tarballs and Python wheels whose bytes follow from their contents alone, and documents for them."""
import base64
import gzip
import hashlib
import io
import pathlib
import platform
import posixpath
import re
import subprocess
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def write_wheel(folder, name, tag, metadata, files):
    """The path of the wheel, for every Python 3. tag: the platforms', joined by dots. metadata: what METADATA has after
    name, version and license. files: path in the wheel, bytes, whether it is a program."""
    stem, record = f"{name.replace('-', '_')}-{version()}", []
    path = pathlib.Path(folder) / f"{stem}-py3-none-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version()}\nLicense: BSD-3-Clause\n"
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
        add(f"{stem}.dist-info/METADATA", (head + metadata).encode())
        add(f"{stem}.dist-info/WHEEL", wheel.encode())
        add(f"{stem}.dist-info/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        record.append(f"{stem}.dist-info/RECORD,,")
        add(f"{stem}.dist-info/RECORD", ("\n".join(record) + "\n").encode())
    return path
