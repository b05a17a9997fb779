"""What type checkers know of fa3: mypy --strict and pyright find torch tensors where tensors went in, NumPy arrays
where arrays did, and mistakes; they find none in the programs of the README and the pages, and each function of the
drop-ins says what it returns. Without mypy the first is skipped, without basedpyright (pyright as a package of PyPI
that needs nothing else) the second. torch is a stand-in, as the real one takes mypy half a minute."""

import ast
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from support import ROOT, fa3, need

sys.path.append(str(ROOT / "tests/support"))
import examples  # noqa: E402

MODULE = ROOT / "tools/python/fa3"
ANY = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
TORCH = ANY + """
from . import cuda as cuda, distributed as distributed, nn as nn
from typing import Iterator
class dtype: ...
class Tensor:
    shape: Any
    dtype: dtype
    def __getattr__(self, name: str) -> Any: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def __add__(self, other: Any) -> Tensor: ...
    def __radd__(self, other: Any) -> Tensor: ...
    def requires_grad_(self, on: bool = ...) -> Tensor: ...
    def sum(self) -> Tensor: ...
bfloat16: dtype
int32: dtype
def zeros(*dims: int, **how: Any) -> Tensor: ...
def randn(*dims: int, **how: Any) -> Tensor: ...
def tensor(numbers: Any, **how: Any) -> Tensor: ...
"""
STAND_INS = {"torch/__init__.pyi": TORCH, "transformers.pyi": ANY}
STAND_INS["flash_attn_interface.pyi"] = "from fa3.flash_attn_interface import *\n"  # as fa3.install puts it
STAND_INS.update({f"torch/{name}.pyi": ANY for name in ("cuda", "distributed", "nn")})
PROGRAM = """
from typing import Any, Optional, Tuple, Union
import fa3
import fa3.flash_attn, fa3.flash_attn_cute, fa3.flash_attn_interface, fa3.flash_mla, fa3.vllm_flash_attn
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
assert_type(fa3.attention_fp8(x, x, x, scales="tensor", seed=None), torch.Tensor)
assert_type(fa3.backward(x, x, x, x, x, x), Tuple[torch.Tensor, torch.Tensor, torch.Tensor])
assert_type(fa3.backward(a, a, a, a, a, a, sinks=a), Tuple[Array, Array, Array, Array])
assert_type(fa3.append(x, x, x, x, q=x), torch.Tensor)
assert_type(fa3.append(None, None, None, None, q=a), Array)
fa3.append(x, x, x, x, cache_seqlens=x)
assert_type(fa3.quantize(x, mean=True).y, torch.Tensor)
assert_type(fa3.quantize(a).mean, Optional[Array])
assert_type(fa3.combine(x, x), Tuple[torch.Tensor, torch.Tensor])
assert_type(fa3.combine(a, a, return_lse=False), Array)
assert_type(fa3.forward_schedule(x, x, x, seqused_k=x), torch.Tensor)
assert_type(fa3.attention(x, x, x, **fa3.documents(x)), torch.Tensor)
assert_type(fa3.library().version(), str)
assert_type(fa3.Unsupported("no").status, int)
assert_type(fa3.flash_attn_cute.flash_attn_func(x, x, x), Tuple[torch.Tensor, torch.Tensor])
assert_type(fa3.flash_attn.unpad_input(x, x)[3], int)
assert_type(fa3.vllm_flash_attn.is_fa_version_supported(3), bool)
fa3.flash_attn.flash_attn_func(x, x, x, causal=True).sum()
fa3.flash_attn_interface.flash_attn_with_kvcache(x, x, x, cache_seqlens=3).sum()
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
DROP_INS = ("flash_attn", "flash_attn_cute", "flash_attn_interface", "flash_mla", "vllm_flash_attn")


def check_names():
    """help() shows each argument that a function's class of types has."""
    for call, names in fa3._calls.arguments.NAMES.items():
        shown = {*inspect.signature(getattr(fa3, call)).parameters}
        assert names <= shown, f"help(fa3.{call}) lacks {names - shown}"
    print(f"{len(fa3._calls.arguments.NAMES)} functions show their arguments")


def programs(folder):
    """Writes them, and the stand-ins; returns the programs' names and the lines with mistakes."""
    for name, text in STAND_INS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "fa3").symlink_to(MODULE)
    found = {"program.py": PROGRAM}
    for document, blocks in examples.examples("python").items():
        found.update({f"{document[:-3].lower()}_{n}.py": block for n, block in enumerate(blocks)})
    for name, text in found.items():
        (folder / name).write_text(text)
    return sorted(found), {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def mypy(folder, names):
    """{(program, line)} of its errors, and what it said."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent"]
    done = subprocess.run([*command, "--disable-error-code=import-untyped", *names], cwd=folder, capture_output=True,
                          text=True)  # fmt: skip
    errors = re.findall(r"^([^:]+):(\d+): error", done.stdout, re.M)
    return {(name, int(line)) for name, line in errors}, done.stdout + done.stderr


def pyright(folder, names):
    settings = {"typeCheckingMode": "standard", "reportMissingModuleSource": False, "include": names,
                "reportUnusedExpression": False}  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = [x for x in json.loads(done.stdout)["generalDiagnostics"] if x["severity"] == "error"]
    return {(pathlib.Path(x["file"]).name, x["range"]["start"]["line"] + 1) for x in found}, done.stdout


def check_types(checker):
    with tempfile.TemporaryDirectory() as name:
        names, wrong = programs(pathlib.Path(name).resolve())
        found, said = checker(pathlib.Path(name).resolve(), names)
    expected = {("program.py", line) for line in wrong}
    assert found == expected, (sorted(found ^ expected), said)
    print(f"{checker.__name__} finds the {len(wrong)} mistakes, and nothing else in {len(names)} programs")


def check_drop_ins():
    """Each function says what it returns: without that a call is untyped to who asks for types."""
    silent = []
    for name in DROP_INS:
        functions = [x for x in ast.parse((MODULE / f"{name}.py").read_text()).body if isinstance(x, ast.FunctionDef)]
        silent += [f"{name}.{x.name}" for x in functions if x.returns is None]
    assert not silent, f"without a return type: {silent}"


check_names()
check_drop_ins()
need("mypy", "numpy")
check_types(mypy)
if importlib.util.find_spec("basedpyright"):
    check_types(pyright)
else:
    print("pyright: not looked at, as there is no basedpyright")
