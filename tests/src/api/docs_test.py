#!/usr/bin/env python3
"""The manual is made from the header without a warning, and nothing public is missing in it or undocumented.
usage: docs_test.py DOXYGEN DOXYFILE SYMBOLS
"""

import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

doxygen, doxyfile, symbols = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    made = subprocess.run(
        [doxygen, "-"],
        input=pathlib.Path(doxyfile).read_text() + f'OUTPUT_DIRECTORY = "{folder}"\nGENERATE_XML = YES\n',
        capture_output=True,
        text=True,
    )
    if made.returncode:
        sys.exit(made.stdout + made.stderr)
    assert (pathlib.Path(folder) / "html/index.html").is_file()
    xmls = [xml.etree.ElementTree.parse(file) for file in pathlib.Path(folder).glob("xml/*.xml")]


def documented(element):
    return any("".join(element.find(kind).itertext()).strip() for kind in ("briefdescription", "detaileddescription"))


functions = {m.findtext("name"): m for tree in xmls for m in tree.iter("memberdef") if m.get("kind") == "function"}
structs = {c.findtext("compoundname"): c for tree in xmls for c in tree.iter("compounddef")
           if c.get("kind") == "struct"}
groups = [c for tree in xmls for c in tree.iter("compounddef") if c.get("kind") == "group"]
wanted = set(pathlib.Path(symbols).read_text().split())
problems = [f"{name} is not in the manual" for name in wanted - set(functions)]
# fa3_kernel_info describes itself field by field; of functions that come in pairs the first speaks for both.
problems += [f"{name} has no description" for name, m in functions.items()
             if not documented(m) and name not in ("fa3_kernel_info_at", "fa3_abi_version")]
problems += [f"{name} has no description" for name, c in structs.items()
             if not documented(c) and name != "fa3_kernel_info"]
for name in ("forward", "backward", "quantize", "append", "combine"):
    if f"fa3_{name}_params" not in structs:
        problems.append(f"fa3_{name}_params is not in the manual")
titles = {group.findtext("title") for group in groups}
if not {"Forward", "Backward", "Quantization", "Append", "Combination", "Kernels", "Version and errors"} <= titles:
    problems.append(f"sections are missing: {sorted(titles)}")
for problem in sorted(problems):
    print(problem)
sys.exit(bool(problems))
