#!/usr/bin/env python3
"""A libcuda.so.1 that lacks an entry point, as an old driver does, or that cannot be loaded, is no driver; the message
says why.

Arguments: the build's libfa3.so, src/device/driver.h (which names the entry points), --, C compiler.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NO_DRIVER, NO_CONTEXT = 4, 5
CUDA_ERROR_INVALID_CONTEXT = 201


def ask(library):
    """In a process of its own, whose loader finds the driver under test first."""
    library = ctypes.CDLL(library)
    library.fa3_last_error_message.restype = ctypes.c_char_p
    for _ in range(2):  # the second answer is remembered
        print(library.fa3_preload(), library.fa3_last_error_message().decode())


def answers(library, folder):
    command = [sys.executable, __file__, "ask", library]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, f"exit status {done.returncode}: {done.stderr}"
    first, second = done.stdout.splitlines()
    assert first == second, (first, second)
    status, message = first.split(" ", 1)
    return int(status), message


def main(library, header, compiler):
    entries = re.findall(r'F\(\w+, "(cu\w+)"', pathlib.Path(header).read_text())
    assert len(entries) > 10 and "cuLaunchKernelEx" in entries, entries
    with tempfile.TemporaryDirectory() as folder:
        driver = pathlib.Path(folder) / "libcuda.so.1"

        def build(present):
            source = "".join(f"int {name}(void) {{ return {CUDA_ERROR_INVALID_CONTEXT}; }}\n" for name in present)
            command = [*compiler, "-x", "c", "-", "-shared", "-fPIC", "-o", driver]
            subprocess.run(command, input=source, text=True, check=True)

        build(entries)
        status, message = answers(library, folder)
        assert status == NO_CONTEXT and f"error {CUDA_ERROR_INVALID_CONTEXT}" in message, (status, message)
        for missing in entries:
            build(name for name in entries if name != missing)
            status, message = answers(library, folder)
            assert status == NO_DRIVER, (missing, status, message)
            assert message == f"libcuda.so.1 has no {missing}: the driver is older than CUDA 12.0", message
        build(entries[2:])
        status, message = answers(library, folder)
        assert status == NO_DRIVER and f"has no {entries[0]}:" in message, message  # the first that is missing
        driver.write_text("not a library")
        status, message = answers(library, folder)
        assert status == NO_DRIVER and message.startswith("the driver's library cannot be loaded: "), message
        assert str(driver) in message, message
    print(f"{len(entries)} entry points, each missed by its name")


if sys.argv[1] == "ask":
    ask(sys.argv[2])
else:
    split = sys.argv.index("--")
    main(sys.argv[1], sys.argv[2], sys.argv[split + 1 :])
