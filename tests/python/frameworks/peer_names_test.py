"""fa3 in the places of other packages has each name of peer_names.txt: computed, or refused by name when it is used.
Those that other interfaces call (no autograd), rotary embedding and FlashMLA's prefill against plain attention in
float64; what is installed for a program that is not edited, and undone. Argument: the library. Skipped without
torch."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from interfaces_cases import plain, rotated  # noqa: E402

import fa3._as  # noqa: E402
import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
from fa3._drop_in import install as installing  # noqa: E402
from fa3._drop_in import rotary  # noqa: E402
from fa3._drop_in.refusals import Refusal  # noqa: E402

fa3.load(sys.argv[1])
torch.manual_seed(1)
LIST = pathlib.Path(__file__).with_name("peer_names.txt")


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def close(found, expected, most=1e-5):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    error = (found.double() - expected.double()).abs().max().item()
    assert error <= most * max(1.0, expected.abs().max().item()), error


def names():
    """{module: names} of the list."""
    found = {}
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            module = line[1 : line.index("]")]
            found[module] = []
        elif line and not line.startswith("#"):
            found[module] += line.split()
    return found


def walk():
    before = {*sys.modules}
    for place in installing.PLACES:
        fa3.install(place)
    table = []
    for module, expected in names().items():
        loaded = importlib.import_module(module)
        missing = [name for name in expected if not hasattr(loaded, name)]
        assert not missing, f"{module} lacks {missing}"
        said = [name for name in expected if isinstance(getattr(loaded, name), Refusal)]
        for name in said:
            refused(NotImplementedError, f".{name} is not computed by fa3", getattr(loaded, name), 1)
        table.append((module, len(expected) - len(said), len(said)))
    for module, computed, said in table:
        print(f"{module}: {computed} computed, {said} refused by name, 0 missing")
    refused(NotImplementedError, "flash_attn.FlashAttnFunc is not computed", two.FlashAttnFunc.apply, 1)
    undone(before)


def undone(before):
    """After uninstall `import` finds what it found before, and it can be installed once more."""
    for place in installing.PLACES:
        fa3.uninstall(place)
    left = {name for name in {*sys.modules} - before if name.startswith(("flash_", "vllm."))}
    assert not left, left
    for place in ("flash_attn", "flash_attn_interface", "flash_attn_3", "flash_mla", "flash_attn.layers.rotary"):
        refused(ImportError, "No module named", importlib.import_module, place)
    refused(importlib.metadata.PackageNotFoundError, "flash_attn_3", importlib.metadata.version, "flash_attn_3")
    assert not hasattr(torch.ops.flash_attn_3, "fwd")
    fa3.install("flash_attn_interface")
    assert torch.ops.flash_attn_3.fwd and importlib.metadata.version("flash-attn-3") == three.__version__
    fa3.uninstall("flash_attn_interface")
    other = sys.modules["flash_mla"] = type(sys)("flash_mla")
    assert fa3.install("flash_mla", replace=True) is sys.modules["flash_mla"] is not other
    fa3.uninstall("flash_mla")
    assert sys.modules.pop("flash_mla") is other
    fa3.install("flash_attn")
    fa3.install("flash_attn.cute")
    fa3.uninstall("flash_attn")
    assert importlib.import_module("flash_attn.cute") is four  # which is a place of its own
    fa3.uninstall("flash_attn.cute")
    refused(ValueError, "name is 'xformers', must be one of", fa3.uninstall, "xformers")


def by_hand():
    """Forward passes and gradients that write where they are told, as of FlashAttention-3 and -4."""
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    each = [plain(*x, causal=True, window=(3, -1), scale=0.3) for x in zip(*doubles)]
    exact, exact_lse = (torch.stack(x) for x in zip(*each))
    dout = torch.randn_like(q)
    expected = torch.autograd.grad(exact, doubles, dout.double())
    how = {"softmax_scale": 0.3, "window_size_left": 3}
    o, lse, *more = three._flash_attn_forward(q, k, v, causal=True, max_seqlen_q=5, max_seqlen_k=9, **how)
    assert [x.numel() for x in more] == [0, 0]
    into = {name: torch.empty_like(x) for name, x in zip(("dq", "dk", "dv"), (q, k, v))}
    three._flash_attn_backward(dout, q, k, v, o, lse, is_causal=True, **into, **how)
    gradients = four._flash_attn_bwd(q, k, v, o, dout, lse, causal=True, **how)
    out, out_lse = torch.empty_like(q), torch.empty_like(lse)
    found = four._flash_attn_fwd(q, k, v, causal=True, out=out, lse=out_lse, **how)
    assert found[0] is out and found[1] is out_lse and found[2:] == (None, None)
    for a, b in ((o, exact), (lse, exact_lse), (out, exact), (out_lse, exact_lse), *zip(into.values(), expected),
                 *zip(gradients, expected)):  # fmt: skip
        close(a, b)
    refused(NotImplementedError, "mask_mod is given", four._flash_attn_fwd, q, k, v, mask_mod=print)
    refused(NotImplementedError, "dlse is given", four._flash_attn_bwd, q, k, v, o, dout, lse, dlse=lse)
    o, lse, *more = two._wrapped_flash_attn_forward(q, k, v, 0.0, 0.3, True, 3, -1, 0.0, None, False)
    close(o, exact)
    rest = (0.0, 0.3, True, 3, -1, 0.0, None, False)
    two._wrapped_flash_attn_backward(dout, q, k, v, o, lse, *(x.zero_() for x in into.values()), *rest)
    for a, b in zip(into.values(), expected):
        close(a, b)


def prefill():
    """FlashMLA's, on packed sequences: lse has rows first."""
    from fa3 import flash_mla

    q, kv = torch.randn(10, 4, 24), torch.randn(18, 2, 40)
    sums, sums_k = ints(0, 3, 10), ints(0, 9, 18)
    o, lse = flash_mla.flash_attn_varlen_kvpacked_func(q, kv, sums, sums_k, 7, 9, 24, causal=True)
    assert o.shape == (10, 4, 16) and lse.shape == (10, 4)
    for a, b, c, d in ((0, 3, 0, 9), (3, 10, 9, 18)):
        exact, exact_lse = plain(q[a:b], kv[c:d, :, :24], kv[c:d, :, 24:], causal=True)
        close(o[a:b], exact), close(lse[a:b], exact_lse.T)
    qkv = torch.cat((q, q, q[..., :16]), -1)
    o, _ = flash_mla.flash_attn_varlen_qkvpacked_func(qkv, sums, 7, 24)
    close(o[:3], plain(q[:3], q[:3], q[:3, :, :16])[0])
    text = "cu_seqlens_qo.dtype is int64, must be int32"
    refused(ValueError, text, flash_mla.flash_attn_varlen_func, q, q, q, sums.long(), sums, 7, 7)


def turned():
    """Rotary embedding: at offsets, packed, in place, back again, and its gradient."""
    x, angles = torch.randn(2, 5, 4, 16), torch.arange(20)[:, None] * torch.logspace(0, -2, 6)
    cos, sin = angles.cos(), angles.sin()
    for interleaved in (False, True):
        exact = lambda x, first: rotated(x, cos, sin, first + torch.arange(len(x)), interleaved)
        for offsets in (3, ints(3, 7)):  # of all, and of each
            expected = torch.stack([exact(y, 3 if isinstance(offsets, int) else (3, 7)[b]) for b, y in enumerate(x)])
            leaf = x.clone().requires_grad_()
            found = rotary.apply_rotary_emb(leaf, cos, sin, interleaved, seqlen_offsets=offsets)
            close(found, expected)
            dout = torch.randn_like(x)
            (gradient,) = torch.autograd.grad(found, leaf, dout)
            close(gradient, rotary.apply_rotary(dout, cos, sin, offsets, interleaved=interleaved, conjugate=True))
            inside = x.clone()
            assert rotary.apply_rotary_emb(inside, cos, sin, interleaved, True, offsets) is inside
            close(inside, expected)
        packed = rotary.apply_rotary_emb(x.flatten(0, 1), cos, sin, interleaved, cu_seqlens=ints(0, 4, 10))
        close(packed, torch.cat([exact(x.flatten(0, 1)[:4], 0), exact(x.flatten(0, 1)[4:], 0)]))
        close(rotary.apply_rotary_emb_torch(x, cos[:5], sin[:5], interleaved)[1], exact(x[1], 0))
        qkv = torch.stack((x, x, x), 2)
        assert rotary.apply_rotary_emb_qkv_(qkv, cos, sin, interleaved=interleaved) is qkv
        heads = rotary.apply_rotary_emb_qkv_(torch.cat((x, x, x), 2), cos, sin, interleaved=interleaved, num_heads_q=4)
        for at, expected in enumerate((exact(x[0], 0), exact(x[0], 0), x[0].double())):
            close(qkv[0, :, at], expected), close(heads[0, :, 4 * at : 4 * at + 4], expected)
        kv = rotary.apply_rotary_emb_kv_(qkv[:, :, 1:].clone(), cos, sin, interleaved)
        assert torch.equal(kv[:, :, 1], x)
    refused(ValueError, "cos.shape[-1] is 9", rotary.apply_rotary, x, angles.new_ones(5, 9), angles.new_ones(5, 9))


def program(code, *arguments, fails=False, **environment):
    """What a new process says on stdout and on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python"), "FA3_LIBRARY": sys.argv[1], **environment}
    done = subprocess.run([sys.executable, "-B", "-c", code, *arguments], env=environment, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def without_edits():
    """A program that imports other packages runs on fa3, by its name, and what it starts by the environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text("""
import sys, beside
from flash_attn_interface import flash_attn_func
from vllm.vllm_flash_attn import flash_attn_varlen_func
assert __name__ == "__main__" and sys.argv == [__file__, "--steps", "3"], sys.argv
import os
print(flash_attn_func.__module__, flash_attn_varlen_func.__module__, os.environ["FA3_INSTALL"])
""")
        (pathlib.Path(folder) / "beside.py").write_text("")
        names = "flash_attn_interface,vllm.vllm_flash_attn"
        code = "from fa3.__main__ import main; main()"
        said = program(code, "--as", names, str(path), "--steps", "3")
        assert said == f"fa3.flash_attn_interface fa3.vllm_flash_attn {names}\n", said
        path.with_name("started.py").write_text("import sys, flash_mla; print(sys.argv[1:], flash_mla.__name__)")
        said = program(f"import os; os.chdir({folder!r}); " + code, "--as", "flash_mla", "-m", "started", "x")
        assert said == "['x'] fa3.flash_mla\n", said
    said = program("import fa3; fa3._as.plugin() if 0 else None; import flash_attn; print(flash_attn.__name__)",
                   FA3_INSTALL="flash_attn, flash_mla")  # fmt: skip
    assert said == "fa3.flash_attn\n", said
    assert program("import fa3._as, sys; fa3._as.plugin(); print('torch' in sys.modules)") == "False\n"
    said = program("import fa3; fa3.install('flash_mla')", FA3_LOG="1")
    assert said == f"fa3: flash_mla is fa3.flash_mla from now on ({ROOT}/tools/python/fa3/flash_mla.py)\n", said
    refused(ValueError, "-m has no module's name", fa3._as.run, "flash_mla", "-m")
    refused(ValueError, "name is 'flash', must be one of", fa3._as.run, "flash", "x.py")
    said = program("import fa3; [help(x) for x in (fa3.distributed, fa3.flash_mla, fa3.flash_attn_cute)]")
    assert "Attention over sequences that are spread" in said and "FlashMLA's decoding" in said
    fa3.uninstall("flash_mla")


for case in (walk, by_hand, prefill, turned, without_edits):
    case()
    print(case.__name__, flush=True)
