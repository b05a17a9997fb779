"""Are the structs and constants as a language sees them those of fa3.h as C sees it?

`PROGRAM --layout` prints its structs and constants as its language lays them out:

  struct NAME SIZE
  field STRUCT NAME OFFSET SIZE
  const NAME VALUE

A C program made from the header prints what that must be.

Arguments: fa3.h, the program, the folder of libfa3.so, --, the C compiler.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

split = sys.argv.index("--")
header, program, library = map(pathlib.Path, sys.argv[1:split])
compiler = sys.argv[split + 1 :]
text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)

structs = {}
for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
    declared = [line.strip().split(None, 1) for line in body.replace("const ", "").split(";") if line.strip()]
    structs[name] = [re.match(r"\W*(\w+)", field)[1] for _, fields in declared for field in fields.split(",")]
enums = re.findall(r"enum \w+ \{(.*?)\}", text, re.S)
constants = [name for body in enums for name in re.findall(r"(\w+) = ", body)]
constants += re.findall(r"^#define (FA3_(?!VERSION|ABI)\w+) \d+$", text, re.M)
assert len(structs) == text.count("typedef struct") - text.count("typedef struct CUstream_st")

source = ["#include <fa3.h>", "#include <stdio.h>", "int main(void) {"]
for struct, fields in structs.items():
    source += [f"  {struct} a_{struct};", f'  printf("struct {struct} %zu\\n", sizeof({struct}));']
    sizes = " + ".join(f"sizeof a_{struct}.{field}" for field in fields)
    source.append(f'  _Static_assert({sizes} == sizeof({struct}), "padding, or a field that was not understood");')
    source += [
        f'  printf("field {struct} {field} %zu %zu\\n", offsetof({struct}, {field}), sizeof a_{struct}.{field});'
        for field in fields
    ]
source += [f'  printf("const {name} %d\\n", (int){name});' for name in constants] + ["}"]
with tempfile.TemporaryDirectory() as folder:
    file, truth = pathlib.Path(folder) / "layout.c", pathlib.Path(folder) / "layout"
    file.write_text("\n".join(source) + "\n")
    subprocess.run([*compiler, "-std=c11", f"-I{header.parent}", file, "-o", truth], check=True)
    expected = subprocess.run([truth], check=True, capture_output=True, text=True).stdout.splitlines()

environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([str(library), os.environ.get("LD_LIBRARY_PATH", "")])}
found = subprocess.run([program, "--layout"], env=environment, check=True, capture_output=True, text=True).stdout
found = found.splitlines()
wrong = [f"missing: {line}" for line in expected if line not in found]
wrong += [f"not in the header: {line}" for line in found if line not in expected]

print(*wrong, f"{len(expected)} lines, {len(wrong)} wrong", sep="\n")
sys.exit(bool(wrong))
