"""No link in a document of the project leads to nothing. Argument: the project's folder."""

import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import links  # noqa: E402

root = pathlib.Path(sys.argv[1])
documents = [path for folder in (".", ".github", "ptx", "src", "tests", "tools") for path in
             sorted((root / folder).glob("*.md" if folder == "." else "**/*.md"))]
assert root / "README.md" in documents and root / "ptx/README.md" in documents, documents
dead = [line for path in documents for line in links.dead(path, root)]
assert not dead, "links that lead nowhere:\n" + "\n".join(dead)

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "b.md").write_text("# A heading, with *signs*\n")
    (folder / "a.md").write_text(
        "[b](b.md) [heading](b.md#a-heading-with-signs) [own](#own) [web](https://a.example/b)\n## Own\n"
        "`code [x](y)`\n```\n[x](z)\n```\n[none](c.md) ![picture](c.svg) [heading](b.md#other) [out](../..) [o](#o)\n")
    found = [line.split("(")[1].rstrip(")") for line in links.dead(folder / "a.md", folder)]
    assert found == ["c.md", "c.svg", "b.md#other", "../..", "#o"], found
print(f"{len(documents)} documents")
