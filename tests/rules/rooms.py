"""Rules of the folders: what a file may include, how many files a folder has, and whose a file is."""
import posixpath
import re

from tree import FOLDERS, occurrences

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


INCLUDE = r'(?m)^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"'


def target_of(tree, path, name):
    """The file that #include "name" in `path` means, or None if it is none of this project's."""
    layer = path.split("/")[0]
    searched = [posixpath.dirname(path)] + (["include", "ptx", "src"] if layer == "src" else ["", "include", "ptx"])
    for folder in searched:
        target = posixpath.normpath(posixpath.join(folder, name))
        if target in tree:
            return target
    return None


FILES = 25


def folders_are_small(tree):
    """At most FILES files in each, those of folders within it not counted."""
    numbers = {}
    for path in tree:
        folder = posixpath.dirname(path)
        numbers[folder] = numbers.get(folder, 0) + 1
    return [f"{folder}: {number} files, of {FILES} at most: make folders in it, by what the files do"
            for folder, number in numbers.items() if number > FILES]


def is_within(path, rooms):
    return any(posixpath.dirname(path) == room[:-2] if room.endswith("/*") else path.startswith(room) for room in rooms)


def includes_point_one_way(tree):
    found = []
    for path, line, match in occurrences(tree, tuple(f"{folder}/" for folder in FOLDERS), INCLUDE, strings=False):
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


def tile_files_have_two_users(tree):
    """A file of ptx/tile is included, directly or by way of other files there, from two other folders of ptx."""
    users = {path: set() for path in tree if path.startswith("ptx/tile/")}
    includes = [(path, target_of(tree, path, match[1]))
                for path, _, match in occurrences(tree, "ptx/", INCLUDE, strings=False)]
    for _ in users:  # one step of the way each
        for path, target in includes:
            if target in users:
                users[target] |= users[path] if path in users else {path.split("/")[1]}
    return [f"{path}: only {', '.join(folders) or 'no folder'} of ptx uses it: what one folder uses belongs there"
            for path, folders in users.items() if len(folders) < 2]


RULES = (includes_point_one_way, folders_are_small, tile_files_have_two_users)
