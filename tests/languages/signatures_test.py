"""Does a file of declarations declare each function of fa3.h, with its result and its parameters?

Each type is one of P (a pointer or address), I (32 bits: int, int32_t, enumerations) and S (size_t); for a call no more
is to know. The file may name nothing of fa3_ or FA3_ that the header does not.

declarations.py makes that file from the header; this reads both in its own way, as the programs call few functions.

Arguments: fa3.h, the file.
"""

import pathlib
import re
import sys

header, declarations = map(pathlib.Path, sys.argv[1:])


def kind(declared, kinds):
    return next((letter for pattern, letter in kinds if re.search(pattern, declared)), f"?({declared.strip()})")


def all_kinds(parameters, separator, kinds):
    parameters = [part for part in re.split(separator, parameters) if part.strip() not in ("", "void")]
    return [kind(part, kinds) for part in parameters]


C = [(r"\*|fa3_stream", "P"), (r"\bsize_t", "S"), (r"\b(int|int32_t|fa3_status)\b", "I")]


def c_like(text):
    for result, name, parameters in re.findall(r"^(?:FA3_API )?([\w *]+[* ])(fa3_\w+)\(([^)]*)\);", text, re.M):
        yield name, kind(result, C) + "".join(all_kinds(parameters, ",", C))


def rust(text):
    kinds = [(r": (\*(mut|const) |fa3_stream)", "P"), (r": usize", "S"), (r": (i32|c_int|fa3_status)", "I")]
    for name, parameters, result in re.findall(r"pub fn (fa3_\w+)\(([^)]*)\) -> ([^;]+);", text):
        yield name, kind(": " + result, kinds) + "".join(all_kinds(parameters, ",", kinds))


def fortran(text):
    kinds = [(r"type\(c_ptr\), value|intent", "P"), (r"c_size_t\), value", "S"), (r"c_int(32_t)?\), value", "I")]
    results = {"integer(c_int)": "I", "type(c_ptr)": "P"}
    pattern = r"^ *(\S+) function (fa3_\w+)\((.*?)\) bind\(c\)\n(.*?)end function"
    for result, name, parameters, body in re.findall(pattern, text, re.M | re.S):
        declared = {
            dummy.strip(): kind(line, kinds)
            for line in body.splitlines()
            if "::" in line
            for dummy in line.split("::")[1].split(",")
        }
        yield name, results[result] + "".join(declared[dummy.strip()] for dummy in parameters.split(",") if dummy)


def java(text):
    kinds = [("ADDRESS", "P"), ("JAVA_LONG", "S"), ("JAVA_INT", "I")]
    for name, types in re.findall(r'function\("(fa3_\w+)", ([^)]*)\)', text):
        yield name, "".join(all_kinds(types, ",", kinds))


def ada(text):
    pointer = r": (in )?out |Address|chars_ptr|(Tensor|Params|Info)$"  # C gets the address of a record
    kinds = [(pointer, "P"), ("size_t", "S"), (r"\b(Integer_32|C.int|Status)$", "I")]
    imported = r'with Import, Convention => C, External_Name => "(\w+)";'
    pattern = r"function \w+\s*(?:\(([^)]*)\))?\s*return (\S+)\s+" + imported
    for parameters, result, name in re.findall(pattern, text):
        letters = [
            kind(part.strip(), kinds) * len(part.split(":")[0].split(","))
            for part in filter(str.strip, parameters.split(";"))
        ]
        yield name, kind(result, kinds) + "".join(letters)


READERS = {".rs": rust, ".f90": fortran, ".java": java, ".lua": c_like, ".ads": ada}
text = declarations.read_text()
expected, found = dict(c_like(header.read_text())), dict(READERS[declarations.suffix](text))
assert len(expected) == header.read_text().count("\nFA3_API "), "a function of the header was not understood"
wrong = [
    f"{name}: declared {found.get(name, 'not at all')}, in the header {expected.get(name, 'not at all')}"
    for name in sorted(expected.keys() | found.keys())
    if expected.get(name) != found.get(name)
]
known = {word.lower() for word in re.findall(r"\b_?(fa3_\w+)", header.read_text(), re.I)}
wrong += [
    f"unknown name: {word}" for word in sorted(set(re.findall(r"\bfa3_\w+", text, re.I))) if word.lower() not in known
]
print(*wrong, f"{len(expected)} functions, {len(wrong)} wrong", sep="\n")
sys.exit(bool(wrong))
