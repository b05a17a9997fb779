"""fa3 in the places of other packages: fa3.install, torch.ops.flash_attn_3, and fa3.register_sdpa, by which torch's
scaled_dot_product_attention computes by fa3. Argument: the library. Skipped without torch; the cases for CUDA say so
where there is no Hopper GPU, and there torch's code around the ops runs on CPU tensors."""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, attention, fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def program(code, *, fails=False):
    """What a new process says on stderr, and on stdout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python"), "FA3_LIBRARY": sys.argv[1]}
    done = subprocess.run([sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr, done.stdout


def installed():
    """Other programs import fa3 by the packages' names after install, and not before."""
    said, _ = program("""
import sys, torch, fa3
import fa3.flash_attn, fa3.flash_attn_interface, fa3.vllm_flash_attn
assert not {"flash_attn", "flash_attn_interface", "vllm.vllm_flash_attn"} & set(sys.modules)
assert not hasattr(torch.ops.flash_attn_3, "fwd")
module = fa3.install("flash_attn_interface")
assert module is fa3.flash_attn_interface and fa3.install("flash_attn_interface") is module
fa3.install("flash_attn")
import flash_attn_interface
from flash_attn import flash_attn_qkvpacked_func
from flash_attn.flash_attn_interface import flash_attn_with_kvcache
assert flash_attn_interface.flash_attn_func is fa3.flash_attn_interface.flash_attn_func
assert flash_attn_with_kvcache is fa3.flash_attn.flash_attn_with_kvcache
assert torch.ops.flash_attn_3.fwd and torch.ops.flash_attn_3.bwd
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
x, mask = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[True, False, True], [False, True, False]])
rows, indices, sums, most, used = unpad_input(x, mask, ~mask & torch.tensor([False, False, True]))
assert indices.tolist() == [0, 2, 4, 5] and torch.equal(rows, index_first_axis(x.flatten(0, 1), indices))
assert sums.tolist() == [0, 2, 4] and sums.dtype == torch.int32 and most == 2 and used.tolist() == [2, 1]
padded = pad_input(rows, indices, 2, 3)
assert torch.equal(padded[:, 2], x[:, 2]) and padded[0, 1].eq(0).all() and padded[1, 0].eq(0).all()
padded.sum().backward()
assert torch.equal(x.grad[..., 0], torch.tensor([[1.0, 0, 1], [0, 1, 1]]))
from flash_attn.bert_padding import unpad_input_for_concatenated_sequences
x, lengths = torch.randn(3, 6, 2, requires_grad=True), torch.tensor([[2, 3, 0, 0, 0, 0], [0] * 6, [6] + [0] * 5])
rows, indices, sums, most = unpad_input_for_concatenated_sequences(x, lengths)
assert indices.tolist() == [0, 1, 2, 3, 4, *range(12, 18)] and torch.equal(rows, x.flatten(0, 1)[indices])
assert sums.tolist() == [0, 2, 5, 11] and sums.dtype == torch.int32 and most == 6 and type(most) is int
rows.sum().backward()
assert x.grad.sum((1, 2)).tolist() == [10, 0, 12]
""")
    assert not said, said
    program("""
import sys, types, fa3
other = sys.modules["flash_attn"] = types.ModuleType("flash_attn")
try:
    fa3.install("flash_attn")
except RuntimeError as error:
    assert "flash_attn is loaded from None: call install before it is imported, or with replace=True" in str(error)
else:
    raise AssertionError("replaced")
assert sys.modules["flash_attn"] is other and "flash_attn.flash_attn_interface" not in sys.modules
assert fa3.install("flash_attn", replace=True) is sys.modules["flash_attn"] is fa3.flash_attn
sys.modules["vllm"] = types.ModuleType("vllm")
fa3.install("vllm.vllm_flash_attn")
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata, is_fa_version_supported
assert is_fa_version_supported(3) and not is_fa_version_supported(4)
fa3.install("flash_mla")
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from flash_mla.flash_mla_interface import flash_mla_with_kvcache as same
assert same is flash_mla_with_kvcache is fa3.flash_mla.flash_mla_with_kvcache
""")
    with tempfile.TemporaryDirectory() as folder:  # a package whose other modules stay what they are
        package = pathlib.Path(folder) / "flash_attn"
        (package / "layers").mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError")
        (package / "layers/__init__.py").write_text("")
        (package / "layers/rotary.py").write_text("here = 1")
        program(f"""
import sys, fa3
sys.path.append({folder!r})
fa3.install("flash_attn")
from flash_attn.layers.rotary import here
import flash_attn
assert flash_attn is fa3.flash_attn
fa3.install("flash_attn.cute")
from flash_attn.cute import flash_attn_func
from flash_attn.cute.interface import flash_attn_varlen_func
assert flash_attn_func is fa3.flash_attn_cute.flash_attn_func
""")
    imported()
    said, _ = program("""
import torch, fa3
library = torch.library.Library("flash_attn_3", "DEF")
library.define("fwd(Tensor q) -> Tensor")
fa3.install("flash_attn_interface")
""", fails=True)  # fmt: skip
    assert "torch.ops.flash_attn_3 is there already" in said, said
    text = ("name is 'xformers', must be one of flash_attn_interface, flash_attn, flash_attn.cute, "
            "vllm.vllm_flash_attn, flash_mla")  # fmt: skip
    refused(ValueError, text, fa3.install, "xformers")


def imported():
    """Whatever way a program has of importing these modules, and of asking for them, works as with the packages."""
    program("""
import fa3, importlib.metadata as metadata, importlib.util
def missing(call, *arguments):
    try:
        call(*arguments)
    except (ImportError, metadata.PackageNotFoundError):
        return True
assert missing(metadata.version, "flash_attn") and importlib.util.find_spec("flash_attn") is None
fa3.install("flash_attn")
from flash_attn import bert_padding, flash_attn_interface
import flash_attn.bert_padding as padding
import flash_attn.flash_attn_interface
assert padding is bert_padding is flash_attn.bert_padding is flash_attn.flash_attn_interface is fa3.flash_attn
assert flash_attn.__path__ == [] and flash_attn.__spec__ is not None
assert importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.bert_padding")
assert missing(__import__, "flash_attn.modules") and importlib.util.find_spec("flash_attn.modules") is None
assert importlib.import_module("flash_attn.layers.rotary").apply_rotary_emb and flash_attn.layers.__path__ == []
for name in ("flash_attn", "flash-attn", "Flash.Attn"):
    assert metadata.version(name) == flash_attn.__version__ == "2.8.3"
assert metadata.packages_distributions()["flash_attn"] == ["flash_attn"]
assert "flash_attn" in [x.metadata["Name"] for x in metadata.distributions()] and not metadata.files("flash_attn")
assert missing(metadata.version, "flash_attn_3")
fa3.install("flash_attn_interface")
import flash_attn_interface
assert metadata.version("flash-attn-3") == "3.0.0" and not hasattr(flash_attn_interface, "__path__")
assert missing(__import__, "flash_attn.cute")
fa3.install("flash_attn.cute")
import flash_attn.cute as c, flash_attn.cute.interface
from flash_attn import cute
assert c is cute is flash_attn.cute is flash_attn.cute.interface is fa3.flash_attn_cute
fa3.install("flash_mla")
from flash_mla import flash_mla_interface
assert flash_mla_interface is fa3.flash_mla
""")
    program("""
import fa3, importlib.util, sys
fa3.install("flash_attn.cute")
assert "flash_attn" not in sys.modules
import flash_attn.cute.interface, flash_attn.cute as c
assert c is flash_attn.cute is fa3.flash_attn_cute and importlib.util.find_spec("flash_attn.cute")
fa3.install("flash_attn")
import flash_attn
assert flash_attn is fa3.flash_attn and flash_attn.cute is c
""")
    with tempfile.TemporaryDirectory() as folder:  # packages that are there, and loaded by who imports them
        for name, code in (("flash_attn", "here = 1"), ("flash_attn/cute", "1 / 0"), ("vllm", "here = 2")):
            package = pathlib.Path(folder) / name
            package.mkdir()
            (package / "__init__.py").write_text(code)
        (pathlib.Path(folder) / "flash_attn/cute/other.py").write_text("here = 3")
        program(f"""
import fa3, sys
sys.path.insert(0, {folder!r})
fa3.install("flash_attn.cute")
fa3.install("vllm.vllm_flash_attn")
assert not {{"flash_attn", "vllm"}} & set(sys.modules)
import flash_attn.cute, vllm.vllm_flash_attn.flash_attn_interface
from flash_attn.cute import other
assert (flash_attn.here, vllm.here, other.here) == (1, 2, 3) and flash_attn.cute is fa3.flash_attn_cute
assert vllm.vllm_flash_attn is fa3.vllm_flash_attn is vllm.vllm_flash_attn.flash_attn_interface
""")


def ops(device):
    """fwd and bwd as torch calls them, by position, with outputs in other strides; what they refuse."""
    import fa3._drop_in.flash_attn_3  # noqa: F401

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    make = lambda rows, heads: torch.randn(2, heads, rows, 16).to(device, dtype).transpose(1, 2)
    q, k, v, dout = make(5, 4), make(9, 2), make(9, 2), make(5, 4)
    out = torch.empty_like(q)
    how = [None] * 5 + [5, 9] + [None] * 9 + [0.3, True, -1, -1, 0, 0.0, True, None, 0, None, 0]
    o, lse, *rest = torch.ops.flash_attn_3.fwd(q, k, v, None, None, None, out, *how)
    expected = fa3.forward(q, k, v, causal=True, softmax_scale=0.3, return_lse=True)
    assert o.data_ptr() == out.data_ptr() and out.stride() == q.stride() and [x.numel() for x in rest] == [0, 0]
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    ends = [None] * 4 + [5, 9, 0.3, True, -1, -1, 0.0, True, 0]
    scratch = torch.ops.flash_attn_3.bwd(dout, q, k, v, out, lse, *gradients, *ends)
    direct = fa3.backward(dout, q, k, v, out, lse, causal=True, softmax_scale=0.3, deterministic=True)
    assert len(scratch) == 5 and all(torch.equal(x, y) for x, y in zip(gradients, direct))
    assert [x.stride() for x in gradients] == [x.stride() for x in (q, k, v)]
    refused(ValueError, "dk is None, must be given", torch.ops.flash_attn_3.bwd, dout, q, k, v, out, lse, gradients[0])
    o, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, q_v=out)
    expected = fa3.forward(q, k, v, qv=out, return_lse=True)
    assert torch.allclose(o, expected[0]) and torch.allclose(lse, expected[1])
    sums_q, sums_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ((0, 2, 5), (0, 4, 9)))
    packed = [x[0].contiguous() for x in (q, k, v, dout)]
    lengths = {"cu_seqlens_q": sums_q, "cu_seqlens_k": sums_k, "max_seqlen_q": 3, "max_seqlen_k": 5}
    o, lse, *_ = torch.ops.flash_attn_3.fwd(*packed[:3], **lengths, window_size_left=2)
    assert torch.equal(o, fa3.forward(*packed[:3], **lengths, window=(2, -1)))
    how = {"leftpad_k": sums_k[:2], "attention_chunk": 4, "window_size_left": 1}
    text = "leftpad_k and cu_seqlens_k are given with attention_chunk"
    refused(NotImplementedError, text, torch.ops.flash_attn_3.fwd, *packed[:3], **lengths, **how)
    gradients = [torch.full_like(x, 7) for x in packed[:3]]
    ends = {**lengths, "window_size_left": 2, "deterministic": True}
    torch.ops.flash_attn_3.bwd(packed[3], *packed[:3], o, lse, *gradients, **ends)
    direct = fa3.backward(packed[3], *packed[:3], o, lse, **lengths, window=(2, -1), deterministic=True)
    assert all(torch.equal(x, y) for x, y in zip(gradients, direct))
    parts, lses = torch.randn(3, 2, 5, 4, 16, device=device), torch.randn(3, 2, 5, 4, device=device)
    o, lse = torch.ops.flash_attn_3.fwd_combine(parts, lses)
    assert torch.equal(o, fa3.combine(parts, lses.transpose(2, 3))[0]) and lse.shape == (2, 5, 4)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.flash_attn_3.fwd.default, (q, k, v), test_utils=checks)
    torch.library.opcheck(torch.ops.flash_attn_3.bwd.default, (packed[3], *packed[:3], *torch.ops.flash_attn_3.fwd(
        *packed[:3], **lengths)[:2], *gradients, sums_q, sums_k, None, None, 3, 5), test_utils=checks)  # fmt: skip


def around_ops():
    """What torch puts around the ops, on CPU tensors, which it would refuse: heads before rows, GQA, gradients."""
    from torch.nn.attention import _fa3, current_flash_attention_impl, restore_flash_attention_impl

    fa3.register_sdpa()
    assert current_flash_attention_impl() == "libfa3"
    refusal, _fa3._fa3_common_support_error = _fa3._fa3_common_support_error, lambda *arguments: None
    try:
        q, k, v, dout = (torch.randn(2, heads, rows, 16).bfloat16() for heads, rows in ((4, 5), (2, 9), (2, 9), (4, 5)))
        o, lse, *more = _fa3._fa3_scaled_dot_product_flash_attention_forward_impl(q, k, v, is_causal=True, scale=0.3)
        found = _fa3._fa3_scaled_dot_product_flash_attention_backward_impl(
            dout, q, k, v, o, lse, None, None, 5, 9, 0.0, True, None, None, scale=0.3)  # fmt: skip
    finally:
        _fa3._fa3_common_support_error = refusal
        restore_flash_attention_impl()
    assert current_flash_attention_impl() is None
    doubles = [x.double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    exact, exact_lse = attention(torch, *doubles, True, 0.3)
    expected = torch.autograd.grad(exact, doubles, dout.double().transpose(1, 2))
    for x, y in ((o, exact), *zip(found, expected)):
        assert (x.transpose(1, 2) - y).abs().max() < 2.0**-6 * y.abs().max()
    assert (lse - exact_lse).abs().max() < 1e-5


def sdpa(device):
    """Any model of torch: scaled_dot_product_attention, and its gradients, are fa3's bits, until it is undone."""
    from torch.nn.attention import SDPBackend, restore_flash_attention_impl, sdpa_kernel

    leaves = [torch.randn(2, 4, 130, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    dout = torch.randn_like(leaves[0])
    by_rows = [x.transpose(1, 2) for x in leaves]
    o = fa3.attention(*by_rows, causal=True, deterministic=True).transpose(1, 2)
    expected = (o, *torch.autograd.grad(o, leaves, dout))
    torch.use_deterministic_algorithms(True)
    fa3.register_sdpa()
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
            found = (o, *torch.autograd.grad(o, leaves, dout))
    finally:
        restore_flash_attention_impl()
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))


def older():
    """A torch without the registry is told so."""
    program("""
import torch, torch.nn.attention, fa3
del torch.nn.attention.register_flash_attention_impl
try:
    fa3.register_sdpa()
except NotImplementedError as error:
    assert f"torch {torch.__version__} cannot take its flash attention from elsewhere" in str(error), error
else:
    raise AssertionError("registered")
""")


torch.manual_seed(1)
for case in (installed, older, around_ops):
    case()
    print(case.__name__, flush=True)
for device in ("cpu", "cuda") if CUDA else ("cpu",):
    ops(device)
    print(f"{device}: ops", flush=True)
if CUDA:
    sdpa("cuda")
    print("cuda: sdpa", flush=True)
else:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
