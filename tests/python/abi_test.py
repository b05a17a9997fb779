"""The ctypes structs, constants and calls of tools/python/fa3 are those of the header: fields, offsets and sizes by the
C compiler. Arguments: fa3.h, --, C compiler."""

import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

from support import fa3, refused

from fa3 import _abi

header, (_, *compiler) = pathlib.Path(sys.argv[1]), sys.argv[2:]
text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
STRUCTS = {f"fa3_{call}_params": struct for call, struct in _abi.CALLS.items()}
STRUCTS |= {"fa3_tensor": fa3.Tensor, "fa3_kernel_info": _abi.KernelInfo}
CONSTANTS = {
    **{f"FA3_DTYPE_{name}": fa3.DTYPES[ours] for name, ours in (
        ("BF16", "bfloat16"), ("FP16", "float16"), ("FP32", "float32"), ("E4M3", "float8_e4m3fn"),
        ("E5M2", "float8_e5m2"), ("INT32", "int32"), ("INT64", "int64"))},
    **{f"FA3_MASK_{name.upper()}": value for name, value in fa3.MASKS.items()},
    **{f"FA3_{name}": getattr(_abi, name) for name in (
        "OK", "MAX_RANK", "SCALE_ROWS", "LATENT_SCALE_COLUMNS", "ABI_VERSION", "FORWARD_WORKSPACE_BYTES",
        "FLAG_DETERMINISTIC", "FLAG_TWO_LEVEL", "FLAG_BATCH_INVARIANT", "FLAG_CENTERED_K", "FLAG_ACCUMULATE",
        "QUANTIZE_INCOHERENT", "QUANTIZE_ROTARY_INTERLEAVED", "APPEND_ROTARY_INTERLEAVED",
        "KERNEL_FORWARD", "KERNEL_BACKWARD", "KERNEL_PASS")},
    **{f"FA3_ERROR_{name}": getattr(_abi, name) for name in (
        "INVALID_ARGUMENT", "UNSUPPORTED", "NO_CONTEXT", "OUT_OF_MEMORY")},
}  # fmt: skip


def compiled():
    """{expression: its value} of every size, offset and constant, by the C compiler."""
    expressions = list(CONSTANTS)
    for name, struct in STRUCTS.items():
        expressions.append(f"sizeof({name})")
        for field, *_ in struct._fields_:
            expressions += [f"offsetof({name}, {field})", f"sizeof((({name}*)0)->{field})"]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "layout")
        lines = "".join(f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
        source = f'#include "fa3.h"\n#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n'
        command = [*compiler, "-I", header.parent, "-x", "c", "-", "-o", program]
        subprocess.run(command, input=source, text=True, check=True)
        values = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(expressions, map(int, values)))


def kind(declaration):
    """Of a parameter in the header: as ctypes has it."""
    declaration = declaration.strip()
    if "*" in declaration or declaration.startswith("fa3_stream"):
        return "pointer"
    return {"int": "int32", "int32_t": "int32", "size_t": "size"}[declaration.split()[0]]


def kind_of_ctypes(kind):
    if kind is ctypes.c_void_p or issubclass(kind, ctypes._Pointer):
        return "pointer"
    return {ctypes.c_int32: "int32", ctypes.c_size_t: "size"}[kind]


def other_versions():
    """A library with another version of the ABI is not loaded, be it older or newer."""
    with tempfile.TemporaryDirectory() as folder:
        for version in (_abi.ABI_VERSION - 1, _abi.ABI_VERSION + 1):
            path = pathlib.Path(folder, f"{version}.so")
            source = f"""const char* fa3_status_string(int status) {{ return 0; }}
                         const char* fa3_last_error_message(void) {{ return 0; }}
                         int fa3_abi_version(void) {{ return {version}; }}"""
            command = [*compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", path]
            subprocess.run(command, input=source, text=True, check=True)
            why = f"{path} has ABI version {version}, this module is for {_abi.ABI_VERSION}"
            refused(fa3.Fa3Error, why, fa3.Library, str(path))


def main():
    other_versions()
    values = compiled()
    for name, ours in CONSTANTS.items():
        assert values[name] == ours, (name, values[name], ours)
    for name, struct in STRUCTS.items():
        assert values[f"sizeof({name})"] == ctypes.sizeof(struct), (name, ctypes.sizeof(struct))
        covered = 0
        for field, *_ in struct._fields_:
            ours, found = getattr(struct, field), (values[f"offsetof({name}, {field})"],
                                                   values[f"sizeof((({name}*)0)->{field})"])  # fmt: skip
            assert (ours.offset, ours.size) == found, (name, field, found, ours)
            covered += ours.size
        assert covered == ctypes.sizeof(struct), f"{name} has fields or gaps that are not described"
    # What the header's enumerations have beyond our constants would be a name that Python cannot say.
    for prefix in ("FA3_DTYPE_", "FA3_MASK_", "FA3_FLAG_", "FA3_QUANTIZE_", "FA3_KERNEL_"):
        names = set(re.findall(rf"^\s+({prefix}\w+) = \d", text, re.M)) - {"FA3_DTYPE_NONE"}
        assert names and names <= CONSTANTS.keys(), names - CONSTANTS.keys()

    prototypes = re.findall(r"^FA3_API fa3_status (fa3_\w+)\(([^)]*)\);", text, re.M)
    library = fa3.library()
    declared = {name for name, _ in prototypes if getattr(library.lib, name).argtypes is not None}
    assert {name for name, _ in prototypes} - declared == {"fa3_preload", "fa3_tensor_pack"}, declared
    for name, parameters in prototypes:
        if name in declared:
            ours = list(map(kind_of_ctypes, getattr(library.lib, name).argtypes))
            assert ours == list(map(kind, parameters.split(","))), (name, ours, parameters)
    print(f"{len(values)} sizes, offsets and constants, {len(declared)} calls")


main()
