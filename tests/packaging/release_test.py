#!/usr/bin/env python3
"""tools/release of this build: the same bytes twice, the sums of all files, and the wheel's own files in the folder for
Hugging Face's hub. It refuses a tree that is not clean, a folder that is there, and a dated version without its tag.

usage: release_test.py BUILD
"""
import hashlib
import io
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import zipfile

from packages import ROOT, need, run

BUILD = pathlib.Path(sys.argv[1]).resolve()
IDENTITY = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
MACHINE = platform.machine()


def git(tree, *words):
    run("git", *words, cwd=tree, env={**os.environ, **IDENTITY})


def committed(tree):
    """A repository of the files that git has here, as they are now."""
    for path in run("git", "ls-files", cwd=ROOT).splitlines():
        if (ROOT / path).exists() and not path.startswith("tests/records/"):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes((ROOT / path).read_bytes())
            (tree / path).chmod((ROOT / path).stat().st_mode)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "all")
    return tree


def release(tree, place, builds, status=0):
    done = subprocess.run([sys.executable, "-B", tree / "tools/release", place, "--builds", builds],
                          capture_output=True, text=True)
    need(done.returncode == status, f"exit status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_made(made, version):
    wheel = f"fa3-{version}-py3-none-manylinux_2_28_{MACHINE}.whl"
    beside = {"SHA256SUMS", wheel, f"fa3-{version}.tar.gz", f"libfa3-{version}-linux-{MACHINE}.tar.gz"}
    found = {path for path in made if not path.startswith("hub/")}
    need(found == beside, f"made {sorted(found)}, not {sorted(beside)}")
    sums = dict(line.split("  ")[::-1] for line in made.pop("SHA256SUMS").decode().splitlines())
    need(sums == {path: hashlib.sha256(data).hexdigest() for path, data in made.items()}, "SHA256SUMS says otherwise")
    with zipfile.ZipFile(io.BytesIO(made[wheel])) as archive:
        module = {path: archive.read(path) for path in archive.namelist() if path.startswith("fa3/")}
    for kind in "cpu", "cu120", "cu130":
        folder = f"hub/build/torch-stable-abi24-{kind}-{MACHINE}-linux/"
        inside = {path.removeprefix(folder): data for path, data in made.items() if path.startswith(folder)}
        need(set(inside) == {*module, "__init__.py", "metadata.json", "LICENSE"}, f"{folder} has {sorted(inside)}")
        need(all(inside[path] == data for path, data in module.items()), f"{folder} has another fa3 than the wheel")


def main():
    version = run(ROOT / "tools/build/version").strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tree, builds, one = committed(folder / "tree"), folder / "builds", folder / "one"
        builds.mkdir()
        (builds / MACHINE).symlink_to(BUILD)
        said = release(tree, one, builds)
        need("left out: fa3-sass alone" in said and "is not released yet" in said, said)
        release(tree, folder / "two", builds)
        made, again = contents(one), contents(folder / "two")
        need(made == again, f"other bytes when made again: {[path for path in made if made[path] != again.get(path)]}")
        check_made(made, version)

        need("exists already" in release(tree, one, builds, status=1), "a release is overwritten")
        need(contents(one) == again, "the release has changed")
        (tree / "new.txt").write_text("")
        said = release(tree, folder / "three", builds, status=1)
        need("the tree is not clean: commit or remove these first\n?? new.txt" in said, said)
        (tree / "new.txt").unlink()
        changes = (tree / "CHANGELOG.md").read_text()
        (tree / "CHANGELOG.md").write_text(changes.replace("not released yet", "2026-01-01", 1))
        git(tree, "commit", "-qam", "a date")
        said = release(tree, folder / "three", builds, status=1)
        need(f"{version} is dated 2026-01-01, and tag v{version} does not point at this commit" in said, said)
        need(not (folder / "three").exists(), "a refused release left a folder")


main()
