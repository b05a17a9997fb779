"""The examples in the README and in the pages of the manual, for the tests that run them."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def examples(language):
    """{document's name: its blocks of code in this language}, of documents that have some."""
    found = {}
    for path in (ROOT / "README.md", *sorted((ROOT / "tools/docs/pages").glob("*.md"))):
        blocks = re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.M | re.S)
        if blocks:
            found[path.name] = blocks
    return found
