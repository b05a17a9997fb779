"""Rules of names: an identifier says what a thing is, not whose it is, nor that it was named before."""
import io
import re
import tokenize

from tree import C_SUFFIXES, blank, is_python

NAME = re.compile(r"of_\w+|its|these|those|others|here")


def identifiers(path, text):
    """(name, line) of each in code."""
    if is_python(path, text):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.string, token.start[0]
    elif path.endswith(C_SUFFIXES):
        for line, code in enumerate(blank(text).split("\n"), 1):
            for name in re.findall(r"\b[A-Za-z_]\w*", code):
                yield name, line


def names_are_nouns(tree):
    return [f"{path}:{line}: {name}: name the thing itself, as row_sum" for path, text in tree.items()
            for name, line in identifiers(path, text) if NAME.fullmatch(name)]


RULES = (names_are_nouns,)
