"""What this fa3 has, and whether this machine can run its kernels. With --selftest a small call is computed by the CPU
reference and, on each Hopper GPU, by a kernel, and compared with float64. With --as a program runs that fa3 serves in
place of other packages, as fa3.install puts it there, without an edit of the program.

Exit status: 0 if the kernels can run here, 77 if not; 1 if there is no library. With --selftest 0 if all that was
computed is right, with or without a GPU, else 1. With --as the program's."""

import argparse
import collections
import importlib.metadata
import sys

from . import __version__, _abi, _as, _machine
from ._machine import selftest

KINDS = {_abi.KERNEL_FORWARD: "forward", _abi.KERNEL_BACKWARD: "backward", _abi.KERNEL_PASS: "passes"}
PACKAGES = ("torch", "numpy", "transformers", "diffusers")  # that fa3 works with


def packages() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def report(library: _abi.Library, machine: _machine.Machine) -> None:
    print(f"fa3 {__version__}, libfa3 {library.version()}, ABI {_abi.ABI_VERSION}: {library.path}")
    kinds = collections.Counter(kernel.kind for kernel in library.kernels())
    print(f"kernels: {', '.join(f'{kinds[kind]} {name}' for kind, name in KINDS.items())}")
    print(f"packages: {packages()}")
    print(f"driver: {'CUDA ' + machine.driver if machine.driver else 'none'}")
    for device in machine.devices:
        print(
            f"device {device.ordinal}: {device.name}, {device.multiprocessors} multiprocessors, "
            f"{device.memory_bytes / 2**30:.0f} GiB: "
            + (f"cannot run the kernels: {device.problem}" if device.problem else "runs the kernels")
        )
    problem = f"cannot run the kernels: {machine.problem}" if machine.problem else "can run the kernels."
    print(f"This machine {problem}")


def compute(library: _abi.Library, machine: _machine.Machine) -> bool:
    is_right = True
    try:
        for result in selftest.selftest(library, [device for device in machine.devices if not device.problem]):
            is_right = is_right and result.is_right
            o, lse = result.errors
            verdict = "ok" if result.is_right else "WRONG"
            print(f"{result.by}: o within {o:.1e} of float64, lse within {lse:.1e}: {verdict}")
    except _abi.Unsupported as error:
        print(f"no kernel was run: {error}")
    except RuntimeError as error:
        print(f"WRONG: {error}")
        return False
    if machine.problem:
        print("no kernel was run, as this machine cannot")
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fa3", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selftest", action="store_true", help="also compute a small call, and compare it")
    parser.add_argument(
        "--as", nargs=argparse.REMAINDER, dest="program", metavar=("NAMES PROGRAM", "ARGUMENT"),
        help="run a program (a file, or -m MODULE) with fa3 as NAMES, such as flash_attn_interface,vllm.vllm_flash_attn",
    )  # fmt: skip
    options = parser.parse_args()
    if options.program is not None:
        if len(options.program) < 2:
            parser.error("argument --as: expected NAMES, as fa3.install takes them, and a PROGRAM")
        names, program, *arguments = options.program
        _as.run(names, program, arguments)
        return 0
    try:
        library = _abi.library()
    except (OSError, _abi.Fa3Error) as error:
        print(f"fa3: {error}", file=sys.stderr)
        return 1
    machine = _machine.machine()
    report(library, machine)
    if options.selftest:
        return 0 if compute(library, machine) else 1
    return 77 if machine.problem else 0


if __name__ == "__main__":
    sys.exit(main())
