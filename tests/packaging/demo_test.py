#!/usr/bin/env python3
"""tools/demo in a copy of the sources, with what tools/setup would fetch already there and kernels that are copied: it
shows all that it promises, takes no words, and leaves build/ alone. README.md, --help and the demo itself say the
minutes that fresh.csv has measured.

usage: demo_test.py BUILD CUDA
"""
import csv
import os
import pathlib
import shutil
import sys
import tempfile

from packages import HERE, MESON, ROOT, need, run

BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:])
MINUTES = {1: "one minute", 2: "two minutes", 3: "three minutes", 4: "four minutes"}
SHOWN = ("64 rows checked: ok",
         "bf16 d128 causal batch 2 seqlen 16384 heads 8/2\n",
         "\n* fa3_fwd_bf16_d128_causal_192x64 ",
         "hot loop QK+PV at ", "// QK 1/8 SS", "// PV 4/4 RS, COMMIT", " 32 exp2,", "WAIT until 0 in flight: PV done",
         "meson setup build && meson compile -C build")

# What --dryrun names: a preprocessor that writes the depfile alone, and a compiler that copies.
TOOLS = {
    "nvcc": """#!/bin/sh
while [ "$1" != -o ]; do shift; done
here=$(cd "$(dirname "$0")" && pwd)
printf '#$ %s\\n' "$here/cpp -E source" "$here/cicc" "$here/ptxas $2"
""",
    "cpp": """#!/bin/sh
while [ "$1" != -MF ]; do shift; done
echo "$4:" >"$2"
""",
    "cicc": "#!/bin/sh\n",
    "ptxas": """#!/bin/sh
cp "{build}/ptx/$(basename "$1")" "$1"
echo "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
""",
}


def copying_cuda(folder, build, cuda):
    """A toolkit that does not compile kernels: in its tools' places are scripts that copy what a build has of them."""
    (folder / "bin").mkdir(parents=True)
    for name, text in TOOLS.items():
        (folder / "bin" / name).write_text(text.replace("{build}", str(build)))
        (folder / "bin" / name).chmod(0o755)
    os.symlink(cuda / "bin/fatbinary", folder / "bin/fatbinary")
    os.symlink(cuda / "include", folder / "include")
    return folder


def copied(folder):
    """The sources, with a .toolchain whose compiler copies kernels, and a tools/setup that only leaves a mark."""
    for name in ("include", "ptx", "src", "tools", "meson.build", "meson.options"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / "tools/setup").write_text("#!/bin/sh\ntouch fetched\n")
    cuda = copying_cuda(folder / ".toolchain/lib/python3/site-packages/nvidia/cu13", BUILD, CUDA)
    for name in ("cuobjdump", "nvdisasm"):
        os.symlink(CUDA / "bin" / name, cuda / "bin" / name)
    (folder / ".toolchain/bin").mkdir()
    os.symlink(MESON, folder / ".toolchain/bin/meson")


with open(HERE / "fresh.csv") as file:
    seconds = [float(row["seconds"]) for row in csv.DictReader(file) if row["user"] == "user"]
time = f"about {MINUTES[round(max(seconds) / 60)]} on two cores"
for page in "README.md", "tools/docs/pages/build.md":
    need(time in " ".join((ROOT / page).read_text().split()), f"{page} does not say that the demo takes {time}")
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name).resolve()
    copied(folder)
    need(time in " ".join(run(folder / "tools/demo", "--help").split()), f"--help does not say {time}")
    said = run(folder / "tools/demo", "-Dkernels=*", status=2)
    need("there is no option -Dkernels=*" in said and not (folder / "fetched").exists(), said)
    said = run(folder / "tools/demo")
    need((folder / "fetched").exists() and not (folder / "build").exists(), "build/ is not the demo's")
    for words in (time, *SHOWN):
        need(words in said, f"{words!r} is missing in\n{said}")
