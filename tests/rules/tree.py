"""The files of the project as the rules read them."""
import functools
import pathlib
import re

FOLDERS = ("include", "ptx", "src", "tests", "tools")
C_SUFFIXES = (".c", ".cpp", ".cu", ".cuh", ".def", ".h")
TEXT_SUFFIXES = (*C_SUFFIXES, ".contract", ".md", ".py")


def read_tree(root):
    """{path: text} of all files of the project's folders and of README.md; files that no rule reads have no text."""
    tree = {"README.md": pathlib.Path(root, "README.md").read_text()}
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(root, folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and not re.search(r"(^|/)(\.|__pycache__/)", name):
                is_text = path.suffix in TEXT_SUFFIXES or path.name == "meson.build" or not path.suffix
                tree[name] = path.read_text() if is_text else ""
    return tree


def is_python(path, text):
    return path.endswith(".py") or re.match(r"#!.*python", text) is not None


def is_code(path, text):
    return path.endswith((*C_SUFFIXES, ".contract")) or is_python(path, text) or text.startswith("#!")


@functools.lru_cache(maxsize=None)
def blank(text, strings=True):
    """The text without comments and, if `strings`, without the contents of string literals; line numbers stay."""
    def replacement(match):
        token = match[0]
        if token.startswith("/"):
            return "\n" * token.count("\n") or " "
        return '""' if strings and token.startswith('"') else token
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', replacement, text, flags=re.S)


def occurrences(tree, folders, pattern, strings=True):
    """(path, line number, match) in the code in C, C++ and CUDA below the folders."""
    for path, text in tree.items():
        if path.startswith(folders) and path.endswith(C_SUFFIXES):
            code = blank(text, strings)
            for match in re.finditer(pattern, code):
                yield path, code.count("\n", 0, match.start()) + 1, match
