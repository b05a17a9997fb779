"""Rules of size: lines of a file, of a function and of the README, words of the glossary."""
import ast
import re

import exceptions
from tree import C_SUFFIXES, blank, is_code, is_python

PRODUCT = ("include/", "ptx/", "src/", "tools/")
LINES, FUNCTION_LINES, README_LINES, WORDS = 400, 80, 130, 22
GLOSSARY = "tools/docs/pages/words.md"


def product(tree):
    return {path: text for path, text in tree.items() if path.startswith(PRODUCT) and is_code(path, text)}


def files_are_short(tree):
    numbers = {path: text.count("\n") for path, text in product(tree).items()}
    found = [f"{path}: {number} lines, of {most} at most: divide it by ideas" for path, number in numbers.items()
             if number > (most := exceptions.LINES.get(path, LINES))]
    return found + exceptions.mended("LINES", numbers, LINES)


def closing(code, begin):
    """Where the block ends whose { is at `begin`; the end of the code if it does not."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def is_scope(head):
    """Does a namespace, class or list of enumerators begin with this text?"""
    return re.search(r"^\s*(inline\s+)?(namespace|struct|class|union|enum|extern)\b(?!.*\)\s*(const\s*)?$)", head,
                     re.S) is not None


def name_of(head):
    """Of a function, without what it is in."""
    head = re.sub(r"\b(alignas|decltype|requires|__launch_bounds__)\s*\(", "", head)
    names = re.findall(r"(operator[^\w\s(]+|~?\w+)\s*\(", head)
    return names[0] if names else ""


def is_body(head, following):
    """Of a function, whose head and what follows behind the closing brace are given; else an initializer."""
    outside = head
    while (shorter := re.sub(r"\([^()]*\)", "", outside)) != outside:
        outside = shorter
    is_call = "(" in head and not re.search(r"[()]|(?<![=!<>])=(?!=)", re.sub(r"operator[^\w\s(]+", "", outside))
    return is_call and not following.startswith((",", "{"))


def c_functions(text):
    """(name, line, lines) of each function outside of functions. It follows braces: those of namespaces and classes are
    walked through, those behind parentheses are bodies, all others are initializers."""
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*$", lambda m: "\n" * m[0].count("\n"), blank(text), flags=re.M | re.S)
    code = re.sub(r"\b(public|private|protected)\s*:(?!:)", ";", code)
    begin = at = depth = 0
    while match := re.compile(r"[;{}]").search(code, at):
        at = match.end()
        head = re.sub(r"\btemplate\s*<[^{};]*?>\s*(?=[\w\[:~])", "", code[begin:match.start()])
        if match[0] == "}":
            depth -= 1
        elif match[0] == "{" and is_scope(head):
            depth += 1
        elif match[0] == "{":
            at = closing(code, match.start()) + 1
            if not is_body(head, code[at:at + 100].lstrip()):
                continue
            line = code.count("\n", 0, re.compile(r"\S").search(code, begin).start()) + 1
            yield name_of(head), line, code.count("\n", 0, at) + 2 - line
        begin = at
    if depth != 0:
        yield "braces that this rule cannot follow", 1, 10 ** 6


def functions(path, text):
    if is_python(path, text):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, node.lineno, node.end_lineno + 1 - node.lineno
    elif path.endswith(C_SUFFIXES):
        yield from c_functions(text)


def functions_are_short(tree):
    found, numbers = [], {}
    for path, text in product(tree).items():
        for name, line, lines in functions(path, text):
            place = f"{path}: {name}"
            numbers[place] = max(numbers.get(place, 0), lines)
            if lines > (most := exceptions.FUNCTION_LINES.get(place, FUNCTION_LINES)):
                found.append(f"{path}:{line}: {name}: {lines} lines, of {most} at most: make a function of each step")
    return found + exceptions.mended("FUNCTION_LINES", numbers, FUNCTION_LINES)


def readme_is_short(tree):
    lines = tree["README.md"].count("\n")
    return [f"README.md: {lines} lines, of {README_LINES} at most: move what not every reader wants to a page in "
            "tools/docs/pages"] if lines > README_LINES else []


def one_short_glossary(tree):
    words = re.findall(r"^\| (?!word \|)([^|]+) \|", tree.get(GLOSSARY, ""), re.M)
    found = [f"{GLOSSARY}: no words found"] if not words else []
    if len(words) > WORDS:
        found.append(f"{GLOSSARY}: {len(words)} words, of {WORDS} at most: take the field's word, or one that is there")
    found += [f"{GLOSSARY}: {word} stands there twice" for word in sorted(set(words)) if words.count(word) > 1]
    return found + [f"{path}: a glossary: the words of all folders are explained in {GLOSSARY}"
                    for path, text in tree.items() if path.endswith(".md") and path != GLOSSARY
                    and re.search(r"^#+ (Words|Glossary)$|^\| word \|", text, re.M)]


RULES = (files_are_short, functions_are_short, readme_is_short, one_short_glossary)
