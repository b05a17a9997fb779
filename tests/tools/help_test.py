"""Every script in tools/ prints its usage with --help, and does nothing else; those in shell refuse words that they do
not know. tools/setup installs what is missing, and for fa3-sass alone no CUDA compiler."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTED = 99  # exit status of what stands in for tools/setup


def scripts(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.read_bytes().startswith(b"#!")]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(script, *words, **environment):
    command = [sys.executable, "-B", script] if b"python" in script.read_bytes().splitlines()[0] else [script]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, cwd=script.parent,
                          env={**os.environ, **environment})


def copied(folder):
    """The scripts, and those of the tests that are meant to be run by hand, without a build beside them."""
    for part in ("tools", "tests", "include"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    by_hand = ("abi/check", "fuzz/run", "gpu/run", "gpu/models/llama.py", "languages/run", "python/torch-env")
    return scripts(folder / "tools") + [folder / "tests" / name for name in by_hand]


def check_installed(folder, setup):
    """What tools/setup has pip install, which here only says what it is asked for."""
    bin, packages = folder / ".toolchain/bin", folder / ".toolchain/lib/python3/site-packages"
    bin.mkdir(parents=True)
    (bin / "pip").write_text('#!/bin/sh\necho "asked for: $*"\n')
    (bin / "pip").chmod(0o755)

    def asked(*words):
        done = run(setup, *words)
        assert done.returncode == 0, done
        return [word.split("==") for word in re.findall(r"\S+==\S+", " ".join(re.findall("asked for.*", done.stdout)))]

    alone = asked("sass")
    assert [package for package, _ in alone] == ["meson", "ninja"], alone
    everything = asked()
    assert everything[:2] == alone and "nvidia-cuda-nvcc" in dict(everything), everything
    for name, version in everything:
        (packages / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
    assert asked() == everything, "packages without a RECORD are not whole"
    for record in packages.iterdir():
        (record / "RECORD").touch()
    assert asked("sass") == asked() == []
    shutil.rmtree(folder / ".toolchain")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    everything = copied(folder)
    assert len(everything) > 20
    setup = folder / "tools/setup"
    done = run(setup, "--help")
    assert done.returncode == 0 and "usage: tools/setup" in done.stdout, done
    for words in (["all"], ["sass", "tests"], ["--test"]):
        done = run(setup, *words)
        assert done.returncode == 2 and words[-1] in done.stderr and "usage: " in done.stderr, done
    check_installed(folder, setup)
    setup.write_text(f'#!/bin/sh\necho "usage: set up with $*"\n[ "$1" = --help ] || exit {STARTED}\n')
    before = files(folder)
    for script in everything:
        done = run(script, "--help")
        assert done.returncode == 0 and not done.stderr, f"{script}: {done}"
        assert "usage: " in done.stdout and len(done.stdout.splitlines()) > 1 or script == setup, f"{script}: {done}"
    for script in ("package", "python/package", "fa3-sass/package"):
        for words in (["--fast"], ["here", "there"]):
            done = run(folder / "tools" / script, *words)
            assert done.returncode == 2 and words[-1] in done.stderr and "usage: " in done.stderr, done
    assert files(folder) == before, "files were made or changed"

    for script, words in (("demo", ""), ("test", "tests"), ("package", ""), ("python/package", ""),
                          ("fa3-sass/package", "sass")):
        done = run(folder / "tools" / script)
        assert done.returncode == STARTED and done.stdout.endswith(f"usage: set up with {words}\n"), done
print(f"{len(everything)} scripts have a usage")
