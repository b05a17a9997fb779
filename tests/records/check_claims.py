#!/usr/bin/env python3
"""Compares the figures of README.md, of tools/docs/pages and of this folder's README.md with what the committed files
say (claims.py), and finds figures of speed and accuracy for which there is no rule, and measurements in the files that
are to be made again. With --renew wrong figures are replaced: for new files, or for rows of another card, which may be
written with ? in place of figures.
"""

import argparse
import collections
import pathlib
import re
import sys

import claims

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tools/docs/pages/*.md"))
# And the headings under which every number with a decimal point is a figure (None: under all).
DOCUMENTS = {
    "README.md": ("How fast",),
    **dict.fromkeys(PAGES, ()),
    "tools/docs/pages/speed.md": None,
    "tools/docs/pages/accuracy.md": None,
    "tests/records/README.md": None,
}
NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
DECIMAL = re.compile(r"(?<![\w.])\d+(?:\.\d+(?!\.?\d)(?:e-?\d+)?|e-\d+)")
WITH_UNIT = re.compile(rf"(?<![\w.]){NUMBER}(?=\s?(?:%|us\b|times\b|[TG]B/s|TFLOP/s))")
NO_CLAIMS = [r"to 1\.25\s+times the error"]  # but limits that the tests set

# What is wrong, in words; where in the document it stands, and what should, if that is known.
Problem = collections.namedtuple("Problem", "text begin end right", defaults=(0, 0, None))


def agrees(text, value):
    """Whether a figure is this value, rounded to the figure's precision."""
    digits, _, exponent = text.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(text) - value) <= unit / 2 * (1 + 1e-9)


def as_written(text, value):
    """The value in the form that a figure has."""
    if isinstance(value, str):
        return value
    if not re.fullmatch(NUMBER, text):
        return f"{value:.2f}" if value < 100 and not isinstance(value, int) else f"{value:.0f}"
    digits, has_exponent, _ = text.partition("e")
    decimals = len(digits.partition(".")[2])
    if not has_exponent:
        return f"{value:.{decimals}f}"
    mantissa, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def compare(where, document, spans, compute):
    """Figures at these places of a document with what they should be."""
    try:
        values = list(compute())
    except Exception as error:  # whatever the files lack
        return [Problem(f"{where}: cannot be computed: {type(error).__name__}: {error}")]
    if len(spans) != len(values):
        return [Problem(f"{where}: {len(spans)} figures, where there are {len(values)}: {values}")]
    found = []
    for (begin, end), value in zip(spans, values):
        text = " ".join(document[begin:end].split())  # words may go over lines
        number = not isinstance(value, str) and re.fullmatch(NUMBER, text)
        if not (agrees(text, value) if number else text == value):
            right = as_written(text, value)
            found.append(Problem(f"{where}: {text or 'nothing'} is {right or 'nothing'}", begin, end, right))
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def rule_of(header, cells):
    """What computes the cells of a row behind its label, of how many cells that is, and its name; or None."""
    if header[0] != "card":
        rule = claims.TABLES.get(cells[0])
        return rule and (rule, 1, cells[0])
    rule, (card, label) = claims.CARD_TABLES.get(header[1]), cells[:2]
    if isinstance(rule, dict):
        labels = 3 if header[2:3] == ["peer"] else 2
        rule = rule.get(label if labels == 2 else tuple(cells[1:3]))
        return rule and ((lambda: rule(card)), labels, ", ".join(cells[:labels]))
    return rule and ((lambda: rule(card, label)), 2, f"{card}, {header[1]}, {label}")


def check_row(header, document, spans):
    cells = [document[begin:end] for begin, end in spans]
    rule = rule_of(header, cells)
    if not rule:
        has_figures = header[0] == "card" or any(DECIMAL.search(cell) for cell in cells)
        return [Problem(f"no rule for the row {' | '.join(cells)}")] if has_figures else []
    compute, labels, name = rule
    return compare(name, document, spans[labels:], compute)


def check_tables(document):
    found, header = [], None
    for line in re.finditer(r"^.*$", document, re.M):
        if not line[0].lstrip().startswith("|"):
            header = None
            continue
        cells = re.finditer(r"(?<=\|) ?([^|]*?) *(?=\|)", line[0])
        spans = [(line.start() + cell.start(1), line.start() + cell.end(1)) for cell in cells]
        if header is None:
            header = [document[begin:end] for begin, end in spans]
        elif not re.fullmatch(r"[\s|:-]+", line[0]):
            found += check_row(header, document, spans)
    return found


# --- prose ------------------------------------------------------------------------------------------------------------


def prose_of(document):
    """The document with blanks in place of code, addresses and tables."""
    for pattern in (r"```.*?```", r"(?<=\])\([^)]*\)", r"`[^`\n]*\d\.\d[^`\n]*`", r"^ *\|.*?$"):
        blanks = lambda match: re.sub(r"[^\n]", " ", match[0])
        document = re.sub(pattern, blanks, document, flags=re.S | re.M)
    return document


def check_sentences(prose, used):
    """used: the patterns that were found are added to it. Returns problems, and the places that rules cover."""
    found, covered = [], []
    for pattern, compute in claims.SENTENCES.items():
        expression = pattern.replace(" ", r"\s+").replace("#", f"({NUMBER})").replace("CARD", r"(?P<card>H\d+)")
        for match in re.finditer(expression, prose):
            used.add(pattern)
            covered.append(match.span())
            named = match.groupdict()
            spans = [match.span(i) for i in range(1, match.re.groups + 1) if i != match.re.groupindex.get("card")]
            arguments = named.values()
            found += compare(" ".join(match[0].split()), prose, spans, lambda: compute(*arguments))
    return found, covered


def uncovered(prose, covered, strict):
    """Figures without a rule."""
    covered = covered + [match.span() for pattern in NO_CLAIMS for match in re.finditer(pattern, prose)]
    headings = list(re.finditer(r"^#+ (.*)$", prose, re.M))
    found = []
    for expression in (WITH_UNIT, DECIMAL):
        for match in expression.finditer(prose):
            above = [heading[1] for heading in headings if heading.start() < match.start()]
            counts = expression is WITH_UNIT or strict is None or (above and above[-1] in strict)
            if counts and not any(begin <= match.start() and match.end() <= end for begin, end in covered):
                around = " ".join(prose[max(0, match.start() - 60) : match.end() + 30].split())
                found.append(Problem(f"no rule for {match[0]} in {around!r}"))
    return found


def check(document, used, strict):
    """What is wrong with a document. strict: as of DOCUMENTS."""
    prose = prose_of(document)
    wrong, covered = check_sentences(prose, used)
    return [*check_tables(document), *wrong, *uncovered(prose, covered, strict)]


def renewed(document, problems):
    for problem in sorted((p for p in problems if p.right is not None), key=lambda p: p.begin, reverse=True):
        document = document[: problem.begin] + problem.right + document[problem.end :]
    return document


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="replace wrong figures in the documents")
    options = parser.parse_args(arguments)
    used, found = set(), []
    for name, strict in DOCUMENTS.items():
        document = (ROOT / name).read_text()
        problems = check(document, used, strict)
        if options.renew:
            (ROOT / name).write_text(renewed(document, problems))
            problems = [problem for problem in problems if problem.right is None]
        found += [f"{name}: {problem.text}" for problem in dict.fromkeys(problems)]
    found += [f"a rule for no sentence: {pattern}" for pattern in claims.SENTENCES if pattern not in used]
    found += claims.dips()
    print("\n".join(found) or "Every figure is what the files say.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
