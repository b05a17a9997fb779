"""fa3.documents: attention and its gradients on random documents against plain float64 under the mask that
FlexAttention makes of their numbers; rows of no document; NumPy arrays; refusals. Argument: the library. Skipped
without torch and NumPy; the cases for CUDA say so where there is no Hopper GPU."""

import math
import random
import sys

from support import fa3, need, refused

need("torch", "numpy")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def numbers_of(seed, batch, seqlen):
    """Random documents, among them of one token, with numbers in no order; the last rows of each entry are padding."""
    draw = random.Random(seed)
    rows = []
    for _ in range(batch):
        row = []
        for number in draw.sample(range(100), seqlen):
            row += [number] * draw.choice([1, 2, 5, 20])
        rows.append(row[: seqlen - 3] + [-1] * 3)
    return torch.tensor(rows)


def values(device):
    dtype, close = (torch.float32, 1e-5) if device == "cpu" else (torch.bfloat16, 2.0**-6)
    for seed, batch, seqlen in ((1, 1, 30), (2, 3, 40), (3, 2, 3)):
        ids = numbers_of(seed, batch, seqlen).to(device)
        how = fa3.documents(ids)
        sums = how["cu_seqlens_q"]
        assert sums is how["cu_seqlens_k"] and sums.dtype == torch.int32 and sums.device == ids.device
        assert how["max_seqlen_q"] == how["max_seqlen_k"] == sums.diff().max() and sums[-1] == batch * seqlen
        torch.manual_seed(seed)
        q, k, v, dout = (torch.randn(batch, seqlen, heads, 16).to(device, dtype) for heads in (4, 2, 2, 4))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        for causal in (False, True):
            o = fa3.attention(*(x.flatten(0, 1) for x in leaves), causal=causal, **how).unflatten(0, (batch, seqlen))
            see = lambda b, h, i, j: (ids[b, i] == ids[b, j]) & ((i >= j) | (not causal))
            hidden = ~create_mask(see, batch, None, seqlen, seqlen, device)
            doubles = [x.detach().double().requires_grad_() for x in leaves]
            k64, v64 = (x.repeat_interleave(2, 2) for x in doubles[1:])
            s = torch.einsum("bihd,bjhd->bhij", doubles[0], k64) / 4
            exact = torch.einsum("bhij,bjhd->bihd", s.masked_fill(hidden, -math.inf).softmax(-1), v64)
            pairs = [(o, exact), *zip(torch.autograd.grad(o, leaves, dout),
                                      torch.autograd.grad(exact, doubles, dout.double()))]  # fmt: skip
            for found, expected in pairs:
                assert (found - expected).abs().max() <= close * expected.abs().max(), (seed, causal)


def lengths(make):
    """Of arrays that make() makes."""
    for ids, sums, longest in (
        ([7, 7, 3, 3, 3, 9], [0, 2, 5, 6], 3),
        ([[1, 1, 2], [2, 2, 2]], [0, 2, 3, 6], 3),  # documents end with their row
        ([[0, 1, 2], [0, 1, 2]], [0, 1, 2, 3, 4, 5, 6], 1),
        ([], [0], 1),
    ):
        how = fa3.documents(make(ids))
        assert how["cu_seqlens_q"].tolist() == sums and how["max_seqlen_k"] == longest, (ids, how)
        assert str(how["cu_seqlens_k"].dtype).endswith("int32") and type(how["cu_seqlens_k"]) is type(make(ids))
    apart = "ids has document 5 of row 1 twice, again from token 3 on: its tokens must stand together"
    refused(ValueError, apart, fa3.documents, make([[5, 5, 5, 5], [5, 2, 2, 5]]))
    refused(ValueError, "ids has 3 dimensions, must have 2, batch and seqlen", fa3.documents, make([[[1]]]))
    refused(ValueError, "ids.dtype is float32, must be an integer's", fa3.documents, make([1], "float32"))
    refused(ValueError, "ids.dtype is bool, must be an integer's", fa3.documents, make([1], "bool"))
    refused(TypeError, "ids is list, must be a torch tensor or a NumPy array", fa3.documents, [1, 1])


def filled(device):
    """Gradients of rows of no document are 0, which costs a fill only where there may be such rows. torch fills new
    memory with NaN here."""
    cover, found = fa3._calls.documents.cover, []
    fa3._calls.documents.cover = lambda *arguments: found.append(cover(*arguments)) or found[-1]
    torch.use_deterministic_algorithms(True)
    ids = torch.tensor([4] * 9 + [1] * 20 + [7], device=device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(1)
    leaves = [torch.randn(33, heads, 16).to(device, dtype).requires_grad_() for heads in (4, 2, 2)]
    written = fa3.documents(ids)
    written["cu_seqlens_q"][-1] -= 1
    whole = fa3.documents(ids)
    equal = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in whole.items()}
    shorter = {**whole, "max_seqlen_q": 15, "max_seqlen_k": 15}
    with torch.inference_mode():  # where nobody sees what is written to a tensor
        assert not cover(fa3.documents(ids)["cu_seqlens_q"], ids, 20)
    for how, rows, known in ((whole, 30, True), (equal, 30, False), (shorter, 30, False), (whole, 33, False),
                             (written, 30, False)):  # fmt: skip
        some = [x[:rows] for x in leaves]
        o, inside = fa3.attention(*some, causal=True, **how), torch.zeros(rows, dtype=torch.bool, device=device)
        for start, end in zip(how["cu_seqlens_q"].tolist(), how["cu_seqlens_q"].tolist()[1:]):
            inside[start : min(end, start + how["max_seqlen_q"])] = True
        found.clear()
        gradients = torch.autograd.grad(o[inside].float().square().sum(), some)
        assert found == [known] * 3, (how, rows, found)
        for x in gradients:
            assert x[inside].isfinite().all() and x[inside].abs().sum() > 0 and (x[~inside] == 0).all(), (how, rows)
    if device == "cuda":
        some = [x[:30].detach() for x in leaves]
        o, lse = fa3.forward(*some, **whole, return_lse=True)
        fa3.preload()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            found.clear()
            fa3.backward(o, *some, o, lse, **whole)
        assert found == [False] * 3, found
    torch.use_deterministic_algorithms(False)
    fa3._calls.documents.cover = cover


lengths(lambda ids, dtype="int64": torch.tensor(ids, dtype=getattr(torch, dtype)))
lengths(lambda ids, dtype="uint8": np.array(ids, dtype))
for device in ("cpu", "cuda") if CUDA else ("cpu",):
    for case in (values, filled):
        case(device)
        print(f"{device}: {case.__name__}", flush=True)
if not CUDA:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
