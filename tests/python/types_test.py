"""What type checkers know of fa3: the stub names what the module has, argument by argument, and mypy finds torch
tensors where tensors went in, NumPy arrays where arrays did, and mistakes. Without mypy the latter is skipped; torch is
a stand-in, as the real one takes it half a minute."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import tempfile

from support import ROOT, fa3, need

STUB = ROOT / "tools/python/fa3/__init__.pyi"
TORCH = """
class Tensor: ...
def zeros(*dims: int) -> Tensor: ...
"""
PROGRAM = """
from typing import Any, Optional, Tuple, Union
import fa3
import numpy as np
import torch
from typing_extensions import assert_type

Array = np.ndarray[Any, Any]
x, a = torch.zeros(1, 2, 3, 8), np.zeros((1, 2, 3, 8), np.float32)
assert_type(fa3.attention(x, x, x, causal=True), torch.Tensor)
assert_type(fa3.attention(a, a, a, window=(1, 0), softcap=1.0), Array)
assert_type(fa3.attention(x, x, x, return_lse=True), Tuple[torch.Tensor, torch.Tensor])
assert_type(fa3.forward(a, a, a, return_lse=True, cu_seqlens_q=a), Tuple[Array, Array])
assert_type(fa3.forward(x, x, x, return_lse=bool(a.size)), Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]])
assert_type(fa3.backward(x, x, x, x, x, x), Tuple[torch.Tensor, torch.Tensor, torch.Tensor])
assert_type(fa3.backward(a, a, a, a, a, a, sinks=a), Tuple[Array, Array, Array, Array])
assert_type(fa3.append(x, x, x, x, q=x), torch.Tensor)
assert_type(fa3.append(None, None, None, None, q=a), Array)
assert_type(fa3.append(x, x, x, x), None)
assert_type(fa3.quantize(x, mean=True).y, torch.Tensor)
assert_type(fa3.quantize(a).mean, Optional[Array])
assert_type(fa3.combine(x, x), Tuple[torch.Tensor, torch.Tensor])
assert_type(fa3.combine(a, a, return_lse=False), Array)
assert_type(fa3.forward_schedule(x, x, x, seqused_k=x), torch.Tensor)
assert_type(fa3.attention(x, x, x, **fa3.documents(x)), torch.Tensor)
assert_type(fa3.library().version(), str)
assert_type(fa3.Unsupported("no").status, int)
fa3.attention(x, x, a)  # wrong
fa3.attention(x, x, x, widow=(1, 0))  # wrong
fa3.attention(x, x, x, window=3)  # wrong
fa3.attention(x, x, x, causal="left")  # wrong
fa3.attention(x, x, x, kernel="fwd")  # wrong
fa3.attention(x, x, x, sinks=a)  # wrong
fa3.append(x, x, x)  # wrong
fa3.install("flash")  # wrong
fa3.nothing  # wrong
"""


def check_names():
    """The stub's arguments of each function are the module's."""
    tree = ast.parse(STUB.read_text())
    fields = {}  # of typed dicts, those of their bases among them
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = re.findall(r"\w+", " ".join(map(ast.unparse, node.bases)))
            own = [line.target.id for line in node.body if isinstance(line, ast.AnnAssign)]
            fields[node.name] = {*own, *(x for base in bases for x in fields.get(base, ()))}
        elif isinstance(node, ast.FunctionDef):
            more = re.findall(r"Unpack\[(\w+)", ast.unparse(node.args.kwarg.annotation)) if node.args.kwarg else []
            names = {x.arg for x in node.args.posonlyargs + node.args.args + node.args.kwonlyargs}
            functions.setdefault(node.name, []).append(names | {x for name in more for x in fields[name]})
    given = {name for node in tree.body if isinstance(node, ast.ImportFrom) for name in (x.name for x in node.names)}
    missing = {*fa3.__all__} - given - {*functions} - {*fields}
    assert not missing, f"{STUB.name} lacks {missing}"
    of = lambda call: {name for name, x in inspect.signature(call).parameters.items() if x.kind != x.VAR_KEYWORD}
    arguments = {name: of(getattr(fa3, name)) for name in functions}
    arguments["attention"] |= {*fa3._forward.NAMES}
    for name in ("forward_schedule", "kernel_info"):
        arguments[name] |= arguments["forward"] - {"return_lse"}
    for name, overloads in functions.items():
        for found in overloads:
            assert found == arguments[name], f"{name}: {found ^ arguments[name]}"
    assert fields["Quantized"] == {*fa3.Quantized._fields}
    print(f"{len(functions)} functions have the stub's arguments")


def check_types():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "torch").mkdir()
        (folder / "torch/__init__.pyi").write_text(TORCH)
        (folder / "fa3").symlink_to(STUB.parent)
        (folder / "program.py").write_text(PROGRAM)
        mypy = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent"]
        done = subprocess.run([*mypy, "program.py"], cwd=folder, capture_output=True, text=True)
    wrong = {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    found = {int(n) for n in re.findall(r"^program.py:(\d+): error", done.stdout, re.M)}
    assert found == wrong and done.stdout.count("\nfa3") == 0, (found ^ wrong, done.stdout, done.stderr)
    print(f"mypy finds the {len(wrong)} mistakes, and nothing else")


check_names()
need("mypy", "numpy")
check_types()
