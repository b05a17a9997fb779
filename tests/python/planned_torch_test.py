"""fa3.forward and fa3.attention on torch tensors with lengths, pages, windows, chunks and sinks: random calls against
plain float64 and its gradients, schedules, torch.compile, torch.library.opcheck, gradients that are refused; on the CPU
by the reference, and on a GPU by the kernels, with graphs. Argument: the library. Skipped without torch and NumPy;
cases for CUDA say so where there is no Hopper GPU."""

import math
import sys

from support import fa3, need, refused

need("torch", "numpy")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from planned_cases import cases, lse_rows  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def tensors_of(case, device, dtype):
    """(q, k, v; the other arguments) on this device, and the case's own arrays as they are there."""
    arrays = {name: torch.from_numpy(x).to(device, dtype) for name, x in case.arrays.items()}
    case.arrays = {name: x.float().cpu().numpy() for name, x in arrays.items()}
    how = {name: torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x for name, x in case.how.items()}
    return arrays, how


def values(device):
    for number, case in enumerate(cases(6 if device == "cpu" else 25)):
        dtype = [torch.bfloat16, torch.float16, torch.float32][number % (3 if device == "cpu" else 2)]
        roundoff = torch.finfo(dtype).eps / 2
        arrays, how = tensors_of(case, device, dtype)
        o, lse = fa3.forward(**arrays, **how, return_lse=True)
        plan = fa3.forward_schedule(**arrays, **how)
        assert plan.dtype == torch.uint8 and plan.device == o.device
        assert (plan.numel() > 0) == (device == "cuda" and o.numel() > 0), case.seed
        planned = fa3.attention(**arrays, **how, schedule=plan)
        packed = "cu_seqlens_q" in how
        rows, heads = o.shape[-3:-1]
        assert o.dtype == dtype and o.shape == (*arrays["q"].shape[:-1], case.dv)
        assert lse.dtype == torch.float32 and lse.shape == ((heads, rows) if packed else (case.batch, heads, rows))
        for index, exact, exact_lse in case.exact():
            at = tuple(torch.from_numpy(index.T))
            assert torch.equal(planned[at], o[at]), case.seed
            found = o[at].double().cpu().numpy()
            # The kernels also round P.
            limit = roundoff * np.abs(exact) + 1e-6
            if device == "cuda":
                limit = 4 * roundoff * max(1, np.abs(exact).max(initial=0))
            assert (np.abs(found - exact) <= limit).all(), (case.seed, case.how)
            close = 1e-5 if device == "cpu" else 1e-3
            assert np.allclose(lse_rows(lse.cpu().numpy(), index), exact_lse, rtol=0, atol=close), (case.seed, case.how)


# ---- packed prompts, and a step of decoding in pages ----


def normal(device, *dims, seed=1):
    generator = torch.Generator().manual_seed(seed + sum(dims))
    return torch.randn(dims, generator=generator).to(device, torch.bfloat16)


def ints(device, *numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def prompts(device, *lengths):
    """Arguments of a call on packed prompts."""
    sums = ints(device, *(sum(lengths[:i]) for i in range(len(lengths) + 1)))
    q, k, v = (normal(device, sum(lengths), heads, 32, seed=heads) for heads in (4, 2, 2))
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": sums, "cu_seqlens_k": sums, "max_seqlen_q": max(lengths),
            "max_seqlen_k": max(lengths), "causal": True}  # fmt: skip


def decoding(device, *keys):
    """Arguments of a step with one query for each sequence."""
    pages, size, most = 20, 8, 3
    table = torch.arange(len(keys) * most, dtype=torch.int32, device=device).flip(0).reshape(-1, most)
    k, v = (normal(device, pages, size, 2, 32, seed=seed) for seed in (1, 2))
    return {"q": normal(device, len(keys), 1, 4, 32), "k": k, "v": v, "page_table": table.contiguous(),
            "seqused_k": ints(device, *keys), "window": (9, 0), "sinks": torch.arange(4.0, device=device)}  # fmt: skip


def exact_gradients(case, given):
    """(gradients of q, k, v and sinks in float64, by torch's autograd of plain operations; which of their elements are
    of rows that see or are seen). given: the gradients of o and lse. Where a row sees no key, LSE is the sink."""
    leaves = {name: torch.from_numpy(x).double().requires_grad_() for name, x in case.arrays.items()}
    sinks = torch.from_numpy(case.how.get("sinks", np.full(case.heads, -np.inf, np.float32))).double().requires_grad_()
    loss = 0 * sinks[sinks.isfinite()].sum()
    in_use = [torch.zeros_like(x, dtype=torch.bool) for x in leaves.values()]
    for b, (index, key_rows) in enumerate(zip(case.rows_q, case.rows_k)):
        at, keys = (tuple(torch.from_numpy(x.T)) for x in (index, key_rows))
        q = leaves["q"][at]
        k, v = (leaves[name][keys].repeat_interleave(case.heads // case.heads_kv, 1) for name in "kv")
        g, glse = given["o"][at], torch.from_numpy(lse_rows(given["lse"].numpy(), index))
        for i in range(len(index)):
            seen = [j for j in range(len(key_rows)) if case.sees(i, j, len(index), len(key_rows))]
            distances = torch.from_numpy(case.distances(i, seen, len(index), len(key_rows)))
            for h in range(case.heads):
                scores = case.transformed(0.4 * k[seen, h] @ q[i, h], b, h, distances, torch.tanh)
                scores = torch.cat((scores, sinks[h, None]))
                if seen:
                    in_use[0][tuple(index[i])] = True
                    for j in seen:
                        in_use[1][tuple(key_rows[j])] = in_use[2][tuple(key_rows[j])] = True
                    lse = scores.logsumexp(0)
                    loss = loss + (g[i, h] * ((scores[:-1] - lse).exp() @ v[seen, h])).sum() + glse[i, h] * lse
                elif sinks[h].isfinite():
                    loss = loss + glse[i, h] * sinks[h]
    leaves = [*leaves.values(), sinks]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(leaves, found)]
    return found, [*in_use, sinks.isfinite()]


def gradients(device):
    """Against float64. Of rows that no sequence has gradients are 0, and NaN in those of their o is not read."""
    for number, case in enumerate(cases(12, keys=("batched", "packed"))):
        if "leftpad_k" in case.how:
            continue
        dtype = [torch.bfloat16, torch.float16, torch.float32][number % (3 if device == "cpu" else 2)]
        arrays, how = tensors_of(case, device, dtype)
        leaves = [x.requires_grad_() for x in arrays.values()]
        if "sinks" in how:
            leaves.append(how["sinks"].requires_grad_())
        o, lse = fa3.attention(**arrays, **how, return_lse=True)
        given = {"o": torch.full(o.shape, math.nan), "lse": torch.full(lse.shape, math.nan)}
        for index in case.rows_q:
            at = tuple(torch.from_numpy(index.T))
            given["o"][at] = normal("cpu", *o.shape, seed=number).float()[at]
            at_lse = (slice(None), at[0]) if lse.ndim == 2 else (at[0], slice(None), at[1])
            given["lse"][at_lse] = normal("cpu", *lse.shape, seed=number).float()[at_lse]
        torch.autograd.backward([o, lse], [given["o"].to(device, dtype), given["lse"].to(device)])
        given["o"] = given["o"].to(dtype).float()
        for name, leaf, exact, in_use in zip(("q", "k", "v", "sinks"), leaves, *exact_gradients(case, given)):
            found = leaf.grad.double().cpu()
            limit = 1e-6 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps * exact.abs().max().clamp(min=1)
            assert (found - exact).abs().max() <= limit if found.numel() else True, (name, case.seed, case.how)
            assert (found[~in_use] == 0).all(), (name, case.seed, case.how)

    how = prompts(device, 5, 3)
    leaves = [how[name].requires_grad_() for name in "qkv"]
    o, lse = fa3.forward(**how, return_lse=True)
    found = torch.autograd.grad(o.float().square().sum() + lse.sum(), leaves)
    plain = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in how.items()}
    dout = torch.autograd.grad(o.float().square().sum(), o)[0]
    direct = fa3.backward(dout, o=o.detach(), lse=lse.detach(), dlse=torch.ones_like(lse), **plain)
    assert len(direct) == 3 and all(torch.equal(x, y) for x, y in zip(found, direct))
    with torch.no_grad():
        assert not fa3.attention(**how).requires_grad
    # Tensors may be longer than their sequences. torch now fills new memory with NaN.
    torch.use_deterministic_algorithms(True)
    longer = [torch.cat((x.detach(), torch.full_like(x[:3], math.nan))).requires_grad_() for x in leaves]
    o, lse = fa3.attention(*longer, **{name: x for name, x in how.items() if name not in "qkv"}, return_lse=True)
    for x, y in zip(found, torch.autograd.grad(o[:8].float().square().sum() + lse[:, :8].sum(), longer)):
        assert torch.equal(x, y[:8]) and (y[8:] == 0).all()
    torch.use_deterministic_algorithms(False)
    # One sequence after the other, without lengths.
    alone = []
    for rows in (slice(0, 5), slice(5, 8)):
        some = [x[None, rows] for x in leaves]
        alone.append(fa3.attention(*some, causal=True, return_lse=True))
    total = sum(o.float().square().sum() + lse.sum() for o, lse in alone)
    for x, y in zip(found, torch.autograd.grad(total, leaves)):
        assert torch.allclose(x, y, rtol=2**-7, atol=2**-7)

    q, k, v = (normal(device, 2, rows, 2, 16).requires_grad_() for rows in (5, 9, 9))
    none = {"page_table": ints(device), "leftpad_k": ints(device, 0, 0), "cache_batch_idx": ints(device, 0, 1)}
    for name, given in none.items():
        for leaf in range(3):
            some = [x if i == leaf else x.detach() for i, x in enumerate((q, k, v))]
            refused(NotImplementedError, f"no backward pass with {name}:", fa3.attention, *some, **{name: given})
    slopes = torch.ones(2, device=device, requires_grad=True)
    later = fa3.forward(q, k, v, alibi_slopes=slopes)
    refused(NotImplementedError, "alibi_slopes has no gradient", torch.autograd.grad, later.sum(), q)
    later = fa3.forward(q, k, v, leftpad_k=none["leftpad_k"])
    refused(NotImplementedError, "fa3.forward with leftpad_k has no derivative", torch.autograd.grad, later.sum(), q)
    given = {"window": (3, 0), "chunk": 4, "sinks": torch.zeros(2, device=device), "batch_invariant": True,
             "softcap": 2.0, "alibi_slopes": slopes.detach()}  # fmt: skip
    for features in ({name: x} for name, x in {**given, "max_seqlen_k": 8}.items()):
        windowed = lambda q: fa3.attention(q, k, v, **features).float().square().sum()
        expected = torch.autograd.grad(windowed(q), q)[0]
        if device == "cpu":
            assert torch.equal(torch.func.grad(windowed)(q.detach()), expected), features
        first = torch.autograd.grad(windowed(q), q, create_graph=True)[0]
        refused(NotImplementedError, "fa3.backward has no derivative", torch.autograd.grad, first.sum(), q)
    alone = lambda q: fa3.forward(q, k.detach(), v.detach(), window=(1, 1))
    refused(NotImplementedError, "fa3 has no forward-mode derivatives", torch.func.jvp, alone, (q,), (q,))
    batches = torch.stack([q, -q]).detach()
    assert torch.equal(torch.vmap(alone)(batches), torch.stack([alone(x) for x in batches]))
    for window, causal in (((-1, -1), False), ((-1, 0), True), ((-1, 5), True)):
        how = {"causal": causal, "deterministic": True}
        o = fa3.attention(q, k, v, window=window, batch_invariant=False, sinks=None, **how)
        same = fa3.attention(q, k, v, **how)
        found, expected = (torch.autograd.grad(x.float().square().sum(), (q, k, v)) for x in (o, same))
        assert torch.equal(o, same) and all(torch.equal(x, y) for x, y in zip(found, expected))


def training(device):
    """A step on packed prompts with a window and sinks, compiled: once for all lengths if shapes are dynamic."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")

    def step(q, k, v, sinks, **how):
        o, lse = fa3.attention(q * 2, k, v + 1, sinks=sinks, window=(9, 0), **how, return_lse=True)
        return o.float().square().sum() + lse.sum()

    lengths = ((5, 7, 9, 1, 300), (9, 20, 8, 310, 11, 1))
    for dynamic, calls in ((False, lengths[:1]), (True, lengths)):
        torch._dynamo.reset()
        counter.clear()
        fast = torch.compile(step, backend=counter, fullgraph=True, dynamic=dynamic)
        for how in (prompts(device, *x) for x in calls):
            leaves = [*(how.pop(name) for name in "qkv"), torch.arange(4.0, device=device) / 2]
            leaves = [x.requires_grad_() for x in leaves]
            ours, expected = (torch.autograd.grad(f(*leaves, **how), leaves) for f in (fast, step))
            for x, y in zip(ours, expected):
                assert torch.allclose(x, y, rtol=1e-2, atol=1e-2), (dynamic, x, y)
        assert counter.frame_count == 1, (dynamic, counter.frame_count)


def schedules(device):
    """A schedule is for the arguments that it was made for."""
    how = prompts(device, 5, 0, 300)
    q, k, v = (how.pop(name) for name in "qkv")
    plan = fa3.forward_schedule(q, k, v, **how)
    o = fa3.forward(q, k, v, **how, schedule=plan)
    assert torch.equal(o, fa3.forward(q, k, v, **how)) and torch.equal(o, fa3.forward(q, k, v, **how, schedule=plan))
    assert torch.equal(fa3.forward(q + 1, k, v, **how, schedule=plan), fa3.forward(q + 1, k, v, **how))
    assert torch.equal(o, fa3.forward(q, k, v, **how, schedule=plan.clone()))
    again = lambda *tensors, **more: fa3.forward(*tensors, **{**how, **more}, schedule=plan)
    for tensors, more in (((q[:, :2], k, v), {}), ((q, k[..., :16], v), {}), ((q.half(), k.half(), v.half()), {}),
                          ((q, k, v), {"window": (2, 0)}), ((q, k, v), {"causal": False}),
                          ((q, k, v), {"max_seqlen_q": 301}), ((q, k, v), {"batch_invariant": True}),
                          ((q, k, v), {"seqused_k": ints(device, 1, 0, 3)})):  # fmt: skip
        refused(ValueError, "schedule was made for other arguments", again, *tensors, **more)
    with torch.autocast(device, torch.float16):
        refused(ValueError, "schedule was made for other arguments", again, q, k, v)
        halves = fa3.forward_schedule(q, k, v, **how)
        assert fa3.forward(q, k, v, **how, schedule=halves).dtype == torch.float16
    planning = lambda: fa3.forward_schedule(q, k, v, **how)
    refused(RuntimeError, "fa3.forward_schedule is not compiled", torch.compile(planning, fullgraph=True))
    assert torch.compile(planning, backend="eager")().shape == plan.shape  # outside of the graph
    plain = fa3.forward_schedule(*(x[None] for x in (q, k, v)), causal=True)
    assert plain.numel() == 0 and fa3.forward(*(x[None] for x in (q, k, v)), causal=True, schedule=plain).shape[0] == 1


def given_output(device):
    """o in memory of the caller's: of packed prompts, of dense calls and in compiled code."""
    how = prompts(device, 5, 3)
    expected, lse = fa3.forward(**how, return_lse=True)
    room = torch.full((10, 4, 64), 7.0, dtype=torch.bfloat16, device=device)
    o, found = fa3.forward(**how, out=room[1:9, :, 32:], return_lse=True)
    assert o.data_ptr() == room[1, 0, 32].data_ptr() and torch.equal(o, expected) and torch.equal(found, lse)
    room[1:9, :, 32:] = 7
    assert (room == 7).all()
    plan = fa3.forward_schedule(**how, out=torch.empty_like(expected))
    fa3.forward(**how, out=room[1:9, :, 32:], schedule=plan)
    assert torch.equal(room[1:9, :, 32:], expected)
    dense = {name: how[name][None] for name in "qkv"}
    out = torch.empty_like(dense["q"])
    assert fa3.forward(**dense, causal=True, out=out) is out and torch.equal(out, fa3.forward(**dense, causal=True))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v, out, **how):
        return fa3.forward(q * 2, k, v, **how, out=out).sum()

    out = torch.empty_like(expected)
    total = step(out=out, **how)
    doubled = fa3.forward(**{**how, "q": how["q"] * 2})
    assert torch.equal(out, doubled) and torch.equal(total, doubled.sum())
    leaf = how["k"].clone().requires_grad_()
    why = "fa3.forward with out has no derivative: no gradient flows through it, and k has one"
    refused(NotImplementedError, why, fa3.forward, **{**how, "k": leaf}, out=out)
    refused(ValueError, "o.dim[1] is 2", fa3.forward, **how, out=out[:, :2])
    refused(ValueError, "out.device is meta, but q.device is", fa3.forward, **how, out=out.to("meta"))


# ---- torch.compile and torch.library ----


def compiled(device):
    """fullgraph; with dynamic shapes other lengths and maxima do not compile again."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")

    def step(q, k, v, schedule=None, **how):
        o, lse = fa3.attention(q * 2, k + 1, v, **how, return_lse=True, schedule=schedule)
        return o.float().square().sum((-1, -2)), lse.exp()

    # No two sizes are the same where torch could take them for one.
    lengths = ((5, 7, 9, 1, 300), (9, 20, 8, 310, 11, 1))
    keys = ((3, 20, 9, 5, 1), (2, 21, 8, 7, 5, 3))
    for dynamic, calls in ((False, [prompts(device, 5, 0, 300)]), (False, [decoding(device, 3, 20, 0)]),
                           (True, [prompts(device, *x) for x in lengths]),
                           (True, [decoding(device, *x) for x in keys])):  # fmt: skip
        torch._dynamo.reset()
        counter.clear()
        fast = torch.compile(step, backend=counter, fullgraph=True, dynamic=dynamic)
        for how in calls:
            how["schedule"] = fa3.forward_schedule(**how)
            for x, y in zip(fast(**how), step(**how)):
                assert torch.allclose(x, y, rtol=1e-4, atol=1e-4), (dynamic, x, y)
        assert counter.frame_count == 1, (dynamic, counter.frame_count)
    q = torch.ones(1, 1, 1, 8, device=device, requires_grad=True)
    fast = torch.compile(lambda q: fa3.attention(q, q, q, leftpad_k=ints(device, 0)), backend="aot_eager")
    refused(NotImplementedError, "no backward pass with leftpad_k", fast, q)


def opchecks(device):
    """Of calls whose sequences have all rows."""
    op, none = torch.ops.fa3.forward_planned.default, (None,) * 6
    how = prompts(device, 5, 3, 9)
    tensors, sums = (how["q"], how["k"], how["v"]), how["cu_seqlens_q"]
    causal, window = fa3.MASKS["causal_bottom_right"], fa3.MASKS["window"]
    for maxima, softcap in (((9, 9), 0.0), ((None, None), 30.0)):
        numbers = (*tensors, causal, 0.5, 0, None, None, 0, 0, *maxima, softcap)
        torch.library.opcheck(op, (*numbers, *none, sums, sums))
    out = torch.empty_like(how["q"])
    torch.library.opcheck(torch.ops.fa3.forward_out.default, (out, *numbers, *none, sums, sums))
    how = decoding(device, 3, 20, 7)
    numbers = (how["q"], how["k"], how["v"], window, 0.0, fa3.FLAG_DETERMINISTIC, None, None, 9, 0, None, 20, 0.0)
    named = {name: how[name] for name in ("seqused_k", "page_table", "sinks")}
    torch.library.opcheck(op, numbers, named)
    leaf = (how["q"].clone().requires_grad_(), *numbers[1:])
    torch.library.opcheck(op, leaf, named, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))

    tensors = [x.requires_grad_() for x in tensors]
    sinks = torch.arange(4.0, device=device).requires_grad_()
    numbers = (*tensors, window, 0.5, 0, None, None, 3, 0, 9, 9, 0.0, *none, sums, sums)
    torch.library.opcheck(op, numbers, {"sinks": sinks})
    o, lse = (x.detach() for x in op(*numbers, sinks=sinks))
    tensors = [x.detach() for x in tensors]
    numbers = (torch.ones_like(o), *tensors, o, lse, None, window, 0.5, 0, None, 3, 0, 9, 9)
    for with_dsinks in (False, True):
        more = (4.0 * with_dsinks, with_dsinks, sinks.detach(), sums, sums)
        torch.library.opcheck(torch.ops.fa3.backward_planned.default, (*numbers, *more))


# ---- refusals ----


def refusals(device):
    how = prompts(device, 5, 3)
    q, k, v = (how[name] for name in "qkv")
    run = lambda **more: fa3.forward(**{**how, **more})
    sums = how["cu_seqlens_q"]
    for name in fa3._calls.forward.INTEGERS:
        for dtype in (torch.int64, torch.int16, torch.float32, torch.bool):
            why = f"{name}.dtype is {str(dtype)[6:]}, must be int32"
            refused(ValueError, why, run, **{name: sums.to(dtype)})
        refused(TypeError, f"{name} is ndarray, but q is Tensor", run, **{name: sums.cpu().numpy()})
        refused(ValueError, f"{name}.device is meta, but q.device is {device}", run, **{name: sums.to("meta")})
        if device == "cuda":
            refused(ValueError, f"{name}.device is cpu, but q.device is cuda", run, **{name: sums.cpu()})
    for name in ("max_seqlen_q", "max_seqlen_k"):
        refused(TypeError, f"{name} is a tensor, must be an int", run, **{name: sums.max()})
    refused(TypeError, "window[0] is a tensor", run, window=(sums[0], 0))
    refused(fa3.InvalidArgument, "sinks.dtype is bf16, must be fp32", run, sinks=q[0, :, 0].contiguous())
    refused(ValueError, "schedule is a tensor of bfloat16", run, schedule=q[0, 0])
    nested = torch.nested.nested_tensor([torch.ones(2, 2, 8), torch.ones(3, 2, 8)])
    refused(NotImplementedError, "q is a nested tensor: fa3 takes packed ones with their cu_seqlens", fa3.forward,
            nested, nested, nested)  # fmt: skip
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in how.items()}
    o, lse = fa3.forward(**meta, return_lse=True)
    assert o.shape == (8, 4, 32) and lse.shape == (4, 8) and o.device.type == "meta"
    assert fa3.kernel_info(**meta).name.startswith("fa3_fwdplanned"), fa3.kernel_info(**meta)


# ---- what only a GPU has ----


def graphs(device):
    """A step and its schedule are captured, and replayed with other lengths and pages."""
    how = decoding(device, 3, 20, 9)
    fa3.preload()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = fa3.forward_schedule(**how)
        layers = [fa3.forward(**{**how, "q": how["q"] * n}, schedule=plan) for n in (1, 2)]
    for keys in ((3, 20, 9), (24, 1, 0)):
        how["seqused_k"].copy_(ints(device, *keys))
        how["page_table"].copy_(how["page_table"].flip(0))
        graph.replay()
        for n, o in zip((1, 2), layers):
            assert torch.equal(o, fa3.forward(**{**how, "q": how["q"] * n})), keys


CASES = (values, gradients, training, schedules, given_output, compiled, opchecks, refusals)
for case in CASES:
    case("cpu")
    print(f"cpu: {case.__name__}", flush=True)
if CUDA:
    for case in (*CASES, graphs):
        case("cuda")
        print(f"cuda: {case.__name__}", flush=True)
else:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
