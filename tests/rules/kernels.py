"""Rules of the kernels and of their table that a compiler does not know. Each returns a list of complaints that say
what to do."""
import pathlib
import re
import sys

from tree import occurrences

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools/build"))
import rows  # noqa: E402


def asm_only_in_isa(tree):
    return [f"{path}:{line}: asm: make it a wrapper in ptx/isa and call that"
            for path, line, _ in occurrences(tree, ("include/", "ptx/", "src/"), r"\b(asm|__asm__|__asm)\b")
            if not path.startswith("ptx/isa/")]


def every_wrapper_is_used(tree):
    """By a kernel or what it is made of, or by another header of ptx/isa."""
    found = []
    for path, line, match in occurrences(tree, "ptx/isa/", r"\bFA3_DEVICE\b[\w\s]*?\b([\w#]+)\("):
        name = re.sub(r"##\w+?##", r"\\w+", match[1])  # as a macro makes it
        users = occurrences(tree, "ptx/", rf"\b{name}\b")
        if all(user == path for user, _, _ in users):
            found.append(f"{path}:{line}: {match[1]}: no kernel uses it: remove it, and its probe in "
                         "tests/ptx/probe.cu")
    return found


def no_templates_in_main_loops(tree):
    return [f"{path}:{line}: template: kernels and roles read the constexpr row (tile/config.cuh); what needs a "
            "template belongs in a .cuh"
            for path, line, _ in occurrences(tree, "ptx/", r"\btemplate\s*<")
            if path.endswith(".cu") and not path.startswith("ptx/passes/")]


def waits_stand_in_kernels(tree):
    parts = {path: text for path, text in tree.items() if path.endswith(".cuh") and not path.startswith("ptx/isa/")}
    found = [f"{path}:{line}: wgmma_wait_group: wait in the role, in the kernel's file, where a reader can count it"
             for path, line, _ in occurrences(parts, "ptx/", r"\bwgmma_wait_group\b")]
    for path, line, match in occurrences(parts, "ptx/", r"\b(issue_\w+)\([^;{}]*\)\s*\{([\s\S]*?)\n\}"):
        if "wait" in match[2]:
            found.append(f"{path}:{line}: {match[1]} waits: wait in the role, in the kernel's file, in plain sight")
    return found


def shared_memory_is_one_struct(tree):
    places = [(path, line) for path, line, _ in occurrences(tree, "ptx/", r"\b__shared__\b")]
    return [f"{path}:{line}: __shared__: all kernels take their shared memory from ptx/tile/shared.cuh, as one struct"
            for i, (path, line) in enumerate(places)
            if path != "ptx/tile/shared.cuh" or path in (place for place, _ in places[:i])]


def rows_of(tree):
    """(place, name, kernel) of the library's rows, and of the paper's."""
    return [(f"{table}:{row.line}", row.name, row.kernel)
            for table in ("ptx/table/rows.def", "ptx/paper/rows.def") for row in rows.rows(tree.get(table, ""))]


def table_is_sound(tree):
    found, names = [], {}
    files = {match[1]: path for path in tree if (match := re.fullmatch(r"ptx/[\w/]+/(\w+)\.cu", path))}
    for where, name, kernel in rows_of(tree):
        if name in names:
            found.append(f"{where}: {name} is already the name of the row at {names[name]}: rows differ in a cell "
                         "that their name shows")
        names.setdefault(name, where)
        if kernel not in files:
            found.append(f"{where}: {name}: there is no {kernel}.cu in a folder of ptx")
    kernels = {kernel for _, _, kernel in rows_of(tree)}
    passes = {kernel for _, name, kernel in rows_of(tree) if name.startswith("fa3_pass_")}  # one contract has them all
    for kernel, path in files.items():
        if kernel not in kernels:
            found.append(f"{path}: no row of a table uses it: add one or remove the kernel")
        if kernel not in passes and path.replace(".cu", ".contract") not in tree:
            found.append(f"{path}: has no {kernel}.contract beside it: state there what its SASS must be")
    if not names:
        found.append("ptx/table/rows.def: no rows found")
    return found


def one_list_of_rows(tree):
    pattern = r"fa3_[a-z0-9]+_(?:bf16|fp16|e4m3)_d\d+\w*"
    return [f"{path}:{line}: {match[0]}: the table (ptx/table/rows.def) is the only list of rows; read it"
            for path, line, match in occurrences(tree, ("include/", "ptx/", "src/"), pattern, strings=False)]


def behaviour_follows_traits(tree):
    """No file asks for a kernel's name or for one head dimension where it should ask for a trait of the row."""
    pattern = r"\b(?:config|row)\.(?:name|kernel)\s*[=!]=|\b(?:d|dv|row\.d|config\.d)\s*[=!]=\s*\d"
    return [f"{path}:{line}: {match[0]}: give the row a trait (enum class Trait in ptx/table/cells.h) and ask for that"
            for path, line, match in occurrences(tree, ("ptx/", "src/"), pattern)]


def no_cuda_runtime(tree):
    pattern = r'#\s*include\s*[<"]((?:cuda|cute|cutlass|nv)[\w./]*)[>"]'
    return [f"{path}:{line}: includes {match[1]}: the library needs neither the CUDA runtime nor CUTLASS; the driver "
            "is loaded at run time, and only src/device/driver.h takes its types from <cuda.h>"
            for path, line, match in occurrences(tree, ("include/", "ptx/", "src/"), pattern, strings=False)
            if (path, match[1]) != ("src/device/driver.h", "cuda.h")]


RULES = (asm_only_in_isa, every_wrapper_is_used, no_templates_in_main_loops, waits_stand_in_kernels,
         shared_memory_is_one_struct, table_is_sound, one_list_of_rows, behaviour_follows_traits, no_cuda_runtime)
