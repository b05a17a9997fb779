#!/usr/bin/env python3
"""fa3-info against the library's own answers, with several drivers: none, too old, with other devices, simulated.

usage: info_test.py FA3_INFO LIBRARY SIMULATED_FOLDER -- C_COMPILER
"""
import ctypes
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from packages import ROOT, need

sys.path.append(str(ROOT / "tools/python"))
from fa3 import _abi  # noqa: E402

INFO, LIBRARY, SIMULATED = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
CC = sys.argv[5:]
CAN, CANNOT, WRONG_WORD, NOT_PRINTED = 0, 77, 2, 1
KINDS = {1: "forward", 2: "backward", 3: "pass"}
DTYPES = {0: None, 1: "bf16", 2: "fp16", 4: "e4m3"}
# Devices are (major, minor); other entry points say that no context is current.
DRIVER = """
static const int major[] = {{{major} 0}}, minor[] = {{{minor} 0}};
int cuInit(unsigned flags) {{ return flags ? 1 : {init}; }}
int cuDriverGetVersion(int* version) {{ return *version = {version}, 0; }}
int cuGetErrorName(int error, const char** name) {{ return *name = "an error", error & 0; }}
int cuDeviceGetCount(int* count) {{ return *count = {count}, 0; }}
int cuDeviceGet(int* device, int ordinal) {{ return *device = ordinal, 0; }}
int cuDeviceGetName(char* name, int size, int device) {{
  return __builtin_snprintf(name, size, "device %d.%d", major[device], minor[device]) < 0;
}}
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {{ return *bytes = 80ul << 30, device & 0; }}
int cuDeviceGetAttribute(int* value, int attribute, int device) {{
  *value = attribute == 75 ? major[device] : attribute == 76 ? minor[device] : attribute == 16 ? 114 : 0;
  return 0;
}}
"""


def ask(*words, driver=None):
    """Exit status and output, with the driver of this folder."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver or "")}
    done = subprocess.run([INFO, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    need(bool(done.stderr) == (done.returncode in (WRONG_WORD, NOT_PRINTED)), f"{words}: {done.stderr}")
    return done.returncode, done.stdout or done.stderr


def answer(expected, driver=None, words=()):
    """The JSON, of which the text says the same."""
    status, text = ask("--json", *words, driver=driver)
    need(status == expected, f"exit status {status}, expected {expected}: {text}")
    found = json.loads(text)
    status, text = ask(*words, driver=driver)
    need(status == expected, f"as text exit status {status}: {text}")
    need(text.startswith(f"libfa3 {found['version']}, ABI {found['abi_version']}: {found['library']}\n"), text)
    need(f"driver: CUDA {found['driver']}\n" in text if found["driver"] else "driver: none\n" in text, text)
    verdict = f"cannot run the kernels: {found['problem']}\n" if found["problem"] else "can run the kernels.\n"
    need(text.endswith(f"\n\nThis machine {verdict}"), text)
    need((found["problem"] is None) == (status == CAN), f"problem {found['problem']}, exit status {status}")
    devices = re.findall(r"^device (\d+): (.*), compute capability ([\d.]+), (\d+) multiprocessors, ([\d.]+) GiB: "
                         r"(.*)$", text, re.M)
    need(devices == [(str(i), device["name"], device["compute_capability"], str(device["multiprocessors"]),
                      f"{device['memory_bytes'] / 2**30:.1f}",
                      "runs the kernels" if device["problem"] is None
                      else f"cannot run the kernels: {device['problem']}")
                     for i, device in enumerate(found["devices"])], text)
    rows = [line.split() for line in text.splitlines() if line.startswith("fa3_")]
    need(rows == [row_of(kernel) for kernel in found["kernels"]], "text and JSON have other kernels")
    return found


def row_of(kernel):
    """The line of the text, from the JSON."""
    is_pass = kernel["kind"] == "pass"
    registers = f"{kernel['producer_registers']}/{kernel['consumer_registers']}"
    return [kernel["name"], kernel["kind"], "-" if is_pass else f"{kernel['block_q']}x{kernel['block_kv']}",
            "-" if is_pass else str(kernel["stages"]), str(kernel["threads"]),
            registers if kernel["consumer_registers"] else "-", str(kernel["shared_memory_bytes"]),
            *(["chosen"] if kernel["chosen"] else ["by", "name"])]


def library_kernels():
    library = ctypes.CDLL(str(LIBRARY))
    for index in range(library.fa3_kernel_count()):
        info = _abi.KernelInfo()
        info.struct_size = ctypes.sizeof(info)
        need(library.fa3_kernel_info_at(index, ctypes.byref(info)) == 0, f"kernel {index}")
        yield info


def check_kernels(found):
    expected = list(library_kernels())
    need(len(found) == len(expected) > 100, f"{len(found)} kernels of {len(expected)}")
    for kernel, info in zip(found, expected):
        need(kernel.pop("kind") == KINDS[info.kind] and kernel.pop("dtype") == DTYPES[info.dtype], info.name)
        need(kernel.pop("name") == info.name.decode(), info.name)
        need(set(kernel) == {"head_dim", "head_dim_v", "causal", "block_q", "block_kv", "stages", "threads",
                             "producer_registers", "consumer_registers", "shared_memory_bytes", "chosen"}, str(kernel))
        for name, value in kernel.items():
            need(value == getattr(info, name), f"{info.name.decode()}: {name} is {value}")


def check_words():
    names = [info.name.decode() for info in library_kernels()]
    for pattern in "*_bf16_d128_*", "fa3_pass_combine", "*":
        found = json.loads(ask("--json", "--kernel", pattern)[1])["kernels"]
        need([kernel["name"] for kernel in found] == fnmatch.filter(names, pattern), pattern)
    for words in ["--kernel", "fa4_*"], ["--kernel"], ["devices"], ["--jsn"], ["--json=no"]:
        status, text = ask(*words)
        need(status == WRONG_WORD and words[0].lstrip("-").split("=")[0] in text, f"{words}: {status}, {text}")
    status, text = ask("--help")
    need(status == 0 and "Exit status: 0" in text and "77" in text, text)
    version = subprocess.run([ROOT / "tools/build/version"], stdout=subprocess.PIPE, text=True).stdout
    need(ask("--version") == (0, f"fa3-info {version}"), "another version")
    for words in [], ["--json"], ["--help"], ["--version"]:
        with open("/dev/full", "w") as full:
            done = subprocess.run([INFO, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        need(done.returncode == NOT_PRINTED and "No space left" in done.stderr, f"{words} to a full disk: {done}")


def entries_of_library():
    return re.findall(r'F\(\w+, "(cu\w+)"', (ROOT / "src/device/driver.h").read_text())


def make_driver(folder, devices, version=12000, without=(), init=0):
    """Of the entry points that the library needs, and of the questions that fa3-info asks."""
    source = DRIVER.format(major="".join(f"{major}, " for major, _ in devices), init=init, version=version,
                           minor="".join(f"{minor}, " for _, minor in devices), count=len(devices))
    for name in entries_of_library():
        if name not in without and f"{name}(" not in source:
            source += f"int {name}(void) {{ return 201; }}\n"
    folder.mkdir()
    subprocess.run([*CC, "-x", "c", "-", "-shared", "-fPIC", "-o", folder / "libcuda.so.1"], input=source, text=True,
                   check=True)
    return folder


def check_drivers(folder):
    broken = folder / "broken"
    broken.mkdir()
    (broken / "libcuda.so.1").write_text("not a library")
    found = answer(CANNOT, broken)
    need(found["driver"] is None and found["devices"] == [] and found["problem"].startswith("the driver's library"),
         found["problem"])
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found = answer(CANNOT)
        need("libcuda.so.1: cannot open shared object file" in found["problem"], found["problem"])

    hopper, ampere = (9, 0), (8, 0)
    found = answer(CANNOT, make_driver(folder / "old", [hopper], version=11040, without=["cuLaunchKernelEx"]))
    problem = "libcuda.so.1 has no cuLaunchKernelEx: the driver is older than CUDA 12.0"
    need((found["driver"], found["problem"], found["devices"][0]["problem"]) == ("11.4", problem, problem), str(found))

    found = answer(CAN, make_driver(folder / "enough", [hopper]))
    device = {"name": "device 9.0", "compute_capability": "9.0", "multiprocessors": 114, "memory_bytes": 80 << 30,
              "problem": None}
    need((found["driver"], found["devices"]) == ("12.0", [device]), str(found["devices"]))

    found = answer(CANNOT, make_driver(folder / "ampere", [ampere]))
    need(found["problem"] == "device 8.0: compute capability 8.0; the kernels need 9.0 (Hopper)", found["problem"])
    found = answer(CANNOT, make_driver(folder / "next", [(9, 1), (10, 0)]))
    need(found["problem"] == "no device can run the kernels", found["problem"])
    found = answer(CAN, make_driver(folder / "two", [ampere, hopper]))
    need([bool(device["problem"]) for device in found["devices"]] == [True, False], str(found["devices"]))
    found = answer(CANNOT, make_driver(folder / "none", []))
    need(found["problem"] == "the driver finds no GPU", found["problem"])
    found = answer(CANNOT, make_driver(folder / "init", [hopper], version=12040, init=100))
    need(found["driver"] == "12.4" and "error 100" in found["problem"], str(found["problem"]))


def check_load(folder):
    """The simulated driver runs a first call and loads all kernels; the other has no contexts, and so cannot."""
    found = answer(CAN, SIMULATED)
    need("library_load_ms" not in found and "preload_ms" not in found["devices"][0], "loaded without being asked")
    status, text = ask("--load", "--json", driver=SIMULATED)
    found = json.loads(text)
    (device,) = found["devices"]
    need(status == CAN and 0 < found["library_load_ms"] < 10000, text)
    need(device["first_call_ms"] > 0 and device["preload_ms"] > 0, text)
    status, text = ask("--load", driver=SIMULATED)
    need(status == CAN and re.search(r"^  loaded in \d+\.\d+ ms$", text, re.M), text)
    need(re.search(r"^  first call \d+\.\d ms, fa3_preload \d+\.\d ms", text, re.M), text)
    print(*re.findall(r"^  .* ms.*$", text, re.M), sep="\n")
    status, text = ask("--load", "--json", driver=folder / "enough")
    need(status == CANNOT and "preload_ms" not in json.loads(text)["devices"][0], text)


def main():
    found = answer(CAN, SIMULATED)
    need(pathlib.Path(found["library"]) == LIBRARY, f"library {found['library']}")
    check_kernels(found["kernels"])
    check_words()
    with tempfile.TemporaryDirectory() as name:
        check_drivers(pathlib.Path(name))
        check_load(pathlib.Path(name))


main()
