"""The rules of the folders that a compiler does not know. Each returns a list of complaints that say what to do."""
import pathlib
import posixpath
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools/build"))
import rows  # noqa: E402

FOLDERS = ("include", "ptx", "src", "tests", "tools")
SUFFIXES = (".c", ".cpp", ".cu", ".cuh", ".def", ".h", ".contract")


def read_tree(root):
    """{path: text} of the sources and of README.md."""
    tree = {"README.md": pathlib.Path(root, "README.md").read_text()}
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(root, folder).rglob("*")):
            if path.suffix in SUFFIXES or path.name == "meson.build":
                tree[path.relative_to(root).as_posix()] = path.read_text()
    return tree


def blank(text, strings=True):
    """The text without comments and, if `strings`, without the contents of string literals; line numbers stay."""
    def replacement(match):
        token = match[0]
        if token.startswith("/"):
            return "\n" * token.count("\n") or " "
        return '""' if strings and token.startswith('"') else token
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', replacement, text, flags=re.S)


def occurrences(tree, folders, pattern, strings=True):
    """(path, line number, match) in the code below the folders."""
    for path, text in tree.items():
        if path.startswith(folders) and not path.endswith((".contract", "meson.build")):
            code = blank(text, strings)
            for match in re.finditer(pattern, code):
                yield path, code.count("\n", 0, match.start()) + 1, match


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
    """(line number, name, kernel) of the table."""
    return [(row.line, row.name, row.kernel) for row in rows.rows(tree["ptx/table/rows.def"])]


def table_is_sound(tree):
    found, names = [], {}
    files = {match[1]: path for path in tree if (match := re.fullmatch(r"ptx/[\w/]+/(\w+)\.cu", path))}
    for line, name, kernel in rows_of(tree):
        where = f"ptx/table/rows.def:{line}"
        if name in names:
            found.append(f"{where}: {name} is already the name of the row in line {names[name]}: rows differ in a cell "
                         "that their name shows")
        names.setdefault(name, line)
        if kernel not in files:
            found.append(f"{where}: {name}: there is no {kernel}.cu in a folder of ptx")
    kernels = {kernel for _, _, kernel in rows_of(tree)}
    passes = {kernel for _, name, kernel in rows_of(tree) if name.startswith("fa3_pass_")}  # one contract has them all
    for kernel, path in files.items():
        if kernel not in kernels:
            found.append(f"{path}: no row of ptx/table/rows.def uses it: add one or remove the kernel")
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


# The ground of src, and all that a function's folder stands on: no function knows another one.
SHARED = ("ptx/params/", "ptx/plan/", "ptx/table/")  # with the host
GROUND = ("include/", *SHARED, "src/error.h", "src/integers.h", "src/problem.h")
BELOW = (*GROUND, "src/cpu/", "src/device/", "src/rules/")
BASE = ("ptx/isa/", "ptx/tile/*", *SHARED)
TILE = ("ptx/isa/", "ptx/tile/", *SHARED)
PLANNED = (*TILE, "ptx/planned/")

# Each stands on those before.
SASS = ("system/", "input/", "listing/", "dataflow/", "loops/", "handovers/", "time/", "kernels/", "rules/", "views/")

# What the files of a room may include, of this project: a folder with all that is in it, or with "*" its files alone.
DIRECTIONS = (
    ("include/", ()),
    ("ptx/isa/", ("ptx/isa/",)),
    ("ptx/table/", ("ptx/table/",)),
    ("ptx/plan/", ("ptx/plan/",)),
    ("ptx/params/", SHARED),
    ("ptx/tile/loads/", (*BASE, "ptx/tile/loads/")),
    ("ptx/tile/scores/", (*BASE, "ptx/tile/scores/")),
    ("ptx/tile/epilogue/", TILE),
    ("ptx/tile/", BASE),
    ("ptx/planned/", PLANNED),
    ("ptx/forward/", (*PLANNED, "ptx/forward/")),
    ("ptx/latent/", (*PLANNED, "ptx/latent/")),
    ("ptx/backward/tile/", (*PLANNED, "ptx/backward/tile/")),
    ("ptx/backward/passes/", (*PLANNED, "ptx/backward/tile/", "ptx/backward/passes/")),
    ("ptx/backward/", (*PLANNED, "ptx/backward/tile/", "ptx/backward/*")),
    ("ptx/passes/", (*TILE, "ptx/passes/")),
    ("ptx/paper/", (*TILE, "ptx/forward/", "ptx/backward/tile/", "ptx/paper/")),
    ("ptx/", ()),
    ("src/error.", ("src/error.h", "include/")),
    ("src/integers.h", ()),
    ("src/problem.h", ("include/", "ptx/table/", "ptx/plan/sequence.h")),
    ("src/rules/", ("src/rules/", *GROUND)),
    ("src/cpu/", ("src/cpu/", *GROUND)),
    ("src/device/", ("src/device/", *GROUND)),
    ("src/forward/", ("src/forward/", *BELOW)),
    ("src/backward/", ("src/backward/", *BELOW)),
    ("src/quantize/", ("src/quantize/", *BELOW)),
    ("src/combine/", ("src/combine/", *BELOW)),
    ("src/append/", ("src/append/", *BELOW)),
    ("src/", ("src/", "include/", "ptx/table/")),
    *(("tools/fa3-sass/" + room, tuple("tools/fa3-sass/" + other for other in SASS[:n + 1]) + ("ptx/", "include/"))
      for n, room in enumerate(SASS)),
    ("tests/", ("tests/", "tools/", "include/", "ptx/")),
    ("tools/", ("tools/", "include/", "ptx/")),
)


def target_of(tree, path, name):
    """The file that #include "name" in `path` means, or None if it is none of this project's."""
    layer = path.split("/")[0]
    searched = [posixpath.dirname(path)] + (["include", "ptx", "src"] if layer == "src" else ["", "include", "ptx"])
    for folder in searched:
        target = posixpath.normpath(posixpath.join(folder, name))
        if target in tree:
            return target
    return None


def is_within(path, rooms):
    return any(posixpath.dirname(path) == room[:-2] if room.endswith("/*") else path.startswith(room) for room in rooms)


def includes_point_one_way(tree):
    found = []
    for path, line, match in occurrences(tree, tuple(f"{folder}/" for folder in FOLDERS),
                                         r'(?m)^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', strings=False):
        target = target_of(tree, path, match[1])
        allowed = next(allowed for layer, allowed in DIRECTIONS if path.startswith(layer))
        if target and not is_within(target, allowed):
            layers = ", ".join(allowed) or "nothing of the project"
            found.append(f"{path}:{line}: includes {target}: may include {layers}; move what is shared down a layer")
    # Include folders are the other way to reach src.
    for path, text in tree.items():
        if path.endswith("meson.build") and path.startswith(("tests/", "tools/", "ptx/")):
            code = re.sub(r"#[^\n]*", "", text)
            for match in re.finditer(r"include_directories\(([^)]*)\)", code):
                if re.search(r"""['/]src['/]""", match[1]):
                    line = code.count("\n", 0, match.start()) + 1
                    found.append(f"{path}:{line}: src is no include folder for others: use include/fa3.h")
    return found


def no_cuda_runtime(tree):
    pattern = r'#\s*include\s*[<"]((?:cuda|cute|cutlass|nv)[\w./]*)[>"]'
    return [f"{path}:{line}: includes {match[1]}: the library needs neither the CUDA runtime nor CUTLASS; the driver "
            "is loaded at run time, and only src/device/driver.h takes its types from <cuda.h>"
            for path, line, match in occurrences(tree, ("include/", "ptx/", "src/"), pattern, strings=False)
            if (path, match[1]) != ("src/device/driver.h", "cuda.h")]


README_LINES = 130


def readme_is_short(tree):
    lines = tree["README.md"].count("\n")
    return [f"README.md: {lines} lines, of {README_LINES} at most: move what not every reader wants to a page in "
            "tools/docs/pages"] if lines > README_LINES else []


RULES = (asm_only_in_isa, every_wrapper_is_used, no_templates_in_main_loops, waits_stand_in_kernels,
         shared_memory_is_one_struct, table_is_sound, one_list_of_rows, behaviour_follows_traits,
         includes_point_one_way, no_cuda_runtime, readme_is_short)
