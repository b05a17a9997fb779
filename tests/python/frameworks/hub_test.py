"""The folder that tools/packaging/hub.py makes, loaded by the client of Hugging Face's hub (PyPI's kernels): attention
on the CPU as torch computes it, fa3's other modules, and an fa3 of another version beside it, which is refused. Argument:
the library. Skipped without torch or kernels."""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, need  # noqa: E402

need("torch", "kernels")
PROGRAM = """
import pathlib, sys, torch
from kernels import get_local_kernel
fa3 = get_local_kernel(pathlib.Path(sys.argv[1]), backend=sys.argv[2])
assert fa3.library().path.startswith(sys.argv[1]), fa3.library().path
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 40, 2, 64, dtype=torch.bfloat16).unbind()
heads_first = (x.double().transpose(1, 2) for x in (q, k, v))
right = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
assert (fa3.attention(q, k, v, causal=True).double() - right.transpose(1, 2)).abs().max() < 0.02
fa3.install("flash_attn_interface")
from flash_attn_interface import flash_attn_func
assert torch.equal(flash_attn_func(q, k, v, causal=True), fa3.attention(q, k, v, causal=True))
print(pathlib.Path(fa3.__file__).parent.name, fa3.__version__, fa3.is_available())
"""
OTHER = """
import sys, types
other = sys.modules["fa3"] = types.ModuleType("fa3")
other.__version__ = other.__file__ = "9.9"
other.__all__ = []
"""


def load(folder, backend, before=""):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("FA3_LIBRARY", None)
    return subprocess.run([sys.executable, "-B", "-c", before + PROGRAM, folder, backend], env=environment, cwd=folder,
                          capture_output=True, text=True)  # fmt: skip


def main():
    import torch

    backends = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
    with tempfile.TemporaryDirectory() as name:
        folder = str(pathlib.Path(name).resolve() / "hub")
        subprocess.run([sys.executable, "-B", ROOT / "tools/packaging/hub.py", sys.argv[1], folder], check=True)
        for backend in backends:
            done = load(folder, backend)
            assert done.returncode == 0, done.stderr
            variant = done.stdout.split()[0]
            assert variant.startswith(f"torch-stable-abi24-{backend[:2]}"), variant
            print(done.stdout.strip())
        done = load(folder, "cpu", OTHER)
        assert done.returncode and "fa3 9.9 is imported already" in done.stderr, done.stderr


main()
