"""Writes a Python wheel. The same contents give the same bytes."""

import base64
import hashlib
import pathlib
import subprocess
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def version(*which):
    run = subprocess.run([ROOT / "tools/build/version", *which], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()


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
