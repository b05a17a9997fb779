"""Each rule that the library enforces is said in fa3.h or in a page that fa3.h names. refusals.txt has the words for
each refusal, that is, for each fail() in src with its format:

src/file.cpp
  format
    words of fa3.h
    fp8.md: words of that page

A line indented by six blanks goes on with the line above. A format stands as often as in the source. Words stand once
in their document, in which neither ends of lines nor the frames of comments count. Argument: the project's folder.
"""

import collections
import pathlib
import re
import sys

STRING = r'"((?:[^"\\]|\\.)*)"'
CALL = re.compile(rf"\bfail\(\s*[\w:]+,\s*((?:{STRING}\s*)*)")


def one_line(text):
    return " ".join(text.split())


def refusals(path):
    """The formats in a source file."""
    source = path.read_text()
    calls = CALL.findall(source)
    assert len(calls) == len(re.findall(r"\bfail\(", source)), f"{path}: a fail() that this test cannot read"
    return ["".join(re.findall(STRING, strings)) for strings, _ in calls]


def said(text):
    """What refusals.txt says: {(file, format): [words for each time that the format stands there]}."""
    result, file = collections.defaultdict(list), ""
    for line in re.sub(r"\n {6}", " ", text).splitlines():
        indent, content = len(line) - len(line.lstrip()), one_line(line)
        assert indent in (0, 2, 4), f"refusals.txt: {content}"
        if indent == 0:
            file = content
        elif indent == 2:
            words = []
            result[file, content].append(words)
        else:
            words.append(content)
    return result


def document(path):
    """A header's or a page's text in one line."""
    text = path.read_text()
    return one_line(re.sub(r"^ *\*+/?|/\*|\*/", " ", text, flags=re.MULTILINE) if path.suffix == ".h" else text)


root = pathlib.Path(sys.argv[1])
header = document(root / "include/fa3.h")
pages = {name: document(root / "tools/docs/pages" / name) for name in re.findall(r"\w+\.md", header)}
listed = said((root / "tests/src/api/refusals.txt").read_text())
wanted = collections.Counter()
for path in sorted((root / "src").rglob("*")):
    if path.suffix in (".cpp", ".h") and path.stem != "error":
        wanted.update((str(path.relative_to(root)), one_line(text)) for text in refusals(path))

problems = [f"{file}: refusals.txt says nothing for: {text}" for file, text in
            (wanted - collections.Counter({key: len(words) for key, words in listed.items()})).elements()]
for (file, text), times in listed.items():
    problems += [f"{file} has no such refusal: {text}"] * (len(times) - wanted[file, text])
    for words in times:
        problems += [] if words else [f"{file}: no words for: {text}"]
        for quotation in words:
            page, quoted = re.fullmatch(r"(?:(\w+\.md): )?(.*)", quotation).groups()
            count = (pages.get(page, "") if page else header).count(quoted)
            if count != 1:
                problems.append(f"{file}: {text}\n    stands {count} times in {page or 'fa3.h'}: {quoted}")
files = [file for file, _ in listed]
if files != sorted(files):
    problems.append("refusals.txt is not sorted by source file")
print("\n".join(problems) or f"{wanted.total()} refusals")
sys.exit(bool(problems))
