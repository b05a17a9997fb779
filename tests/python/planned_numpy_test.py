"""fa3.forward on NumPy arrays with lengths, pages, windows, chunks and sinks: random calls against plain float64,
and refusals. Argument: the library."""

import sys

from support import fa3, need, refused

need("numpy")
import numpy as np  # noqa: E402
from planned_cases import Case, cases, lse_rows  # noqa: E402

fa3.load(sys.argv[1])
ROUNDOFF = {np.float32: 2.0**-24, np.float16: 2.0**-11}


def values():
    """Rounded once from float64."""
    features = set()
    for number, case in enumerate(cases(25)):
        dtype = np.float16 if number % 5 == 0 else np.float32
        case.arrays = {name: x.astype(dtype) for name, x in case.arrays.items()}
        o, lse = fa3.forward(**case.arrays, **case.how, return_lse=True)
        packed = "cu_seqlens_q" in case.how
        rows, heads = case.arrays["q"].shape[:-1][-2:]
        assert o.shape == (*case.arrays["q"].shape[:-1], case.dv) and o.dtype == dtype, case.seed
        assert lse.shape == ((heads, rows) if packed else (case.batch, heads, rows)) and lse.dtype == np.float32
        for index, exact, exact_lse in case.exact():
            limit = ROUNDOFF[dtype] * np.abs(exact) + (1e-6 if dtype is np.float16 else 1e-12)
            assert (np.abs(o[tuple(index.T)] - exact) <= limit).all(), (case.seed, case.how)
            found = lse_rows(lse, index)
            assert np.allclose(found, exact_lse, rtol=0, atol=4e-6), (case.seed, case.how)
        features |= case.how.keys()
        if number % 7 == 0 and "alibi_slopes" not in case.how:
            again = fa3.attention(**case.arrays, **case.how, batch_invariant=True)
            assert all(np.array_equal(again[tuple(x.T)], o[tuple(x.T)]) for x in case.rows_q), case.seed
    assert features >= {"sinks", "window", "chunk", "leftpad_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "softcap",
                        "alibi_slopes"}, features  # fmt: skip


def centered():
    """The flag changes no bit on the CPU, and is not for all calls."""
    q, k, v, dout = (np.random.default_rng(n).standard_normal((1, 40, 2, 8), np.float32) for n in range(4))
    how = {"causal": True, "cu_seqlens_q": np.array([0, 40], np.int32)}
    o, lse = fa3.forward(q[0], k, v, **how, return_lse=True)
    plain = fa3.backward(dout[0], q[0], k, v, o, lse, **how)
    for x, y in zip(plain, fa3.backward(dout[0], q[0], k, v, o, lse, **how, centered_k=True)):
        assert np.array_equal(x, y)
    assert np.array_equal(fa3.attention(q[0], k, v, **how, centered_k=True), o)
    sinks = np.zeros(2, np.float32)
    refused(NotImplementedError, "FA3_FLAG_CENTERED_K and sinks cannot be had together",
            fa3.backward, dout[0], q[0], k, v, o, lse, **how, centered_k=True, sinks=sinks)  # fmt: skip


def gradients():
    """fa3.backward against differences of fa3.forward, in a random direction of all inputs."""
    for case in cases(8, keys=("batched", "packed")):
        if "leftpad_k" in case.how or not any(map(len, case.rows_q)):
            continue
        random, sinks = case.random, case.how.get("sinks")
        used = [tuple(np.concatenate(index).T) for index in (case.rows_q, case.rows_k, case.rows_k)]
        directions = [random.standard_normal(x.shape, np.float32) for x in case.arrays.values()]
        o, lse = fa3.forward(**case.arrays, **case.how, return_lse=True)
        dout, dlse = (np.full(x.shape, np.nan, np.float32) for x in (o, lse))
        dout[used[0]] = random.standard_normal(o[used[0]].shape, np.float32)
        at = [(slice(None), x[:, 0]) if lse.ndim == 2 else (x[:, :1], slice(None), x[:, 1:]) for x in case.rows_q]
        for index in at:
            dlse[index] = np.where(np.isfinite(lse[index]), random.standard_normal(lse[index].shape, np.float32), 0)

        def loss(step):
            arrays = {name: x.astype(np.float32) for name, x in case.arrays.items()}
            for x, rows, direction in zip(arrays.values(), used, directions):
                x[rows] += step * direction[rows]
            more = {**case.how, **({} if sinks is None else {"sinks": sinks + np.float32(step)})}
            o, lse = fa3.forward(**arrays, **more, return_lse=True)
            lse_part = sum((dlse[x].astype(float) * np.where(np.isfinite(lse[x]), lse[x], 0)).sum() for x in at)
            return (o[used[0]].astype(float) * dout[used[0]]).sum() + lse_part

        found = fa3.backward(dout, **case.arrays, o=o, lse=lse, dlse=dlse, **case.how)
        assert len(found) == 3 + (sinks is not None) and all(np.isfinite(x).all() for x in found), case.seed
        for x, rows in zip(found, used):
            rest = x.copy()
            rest[rows] = 0
            assert not rest.any(), case.seed
        slope = sum((x[rows] * direction[rows]).sum() for x, rows, direction in zip(found, used, directions))
        slope += 0 if sinks is None else found[3].sum()
        difference = (loss(1e-2) - loss(-1e-2)) / 2e-2
        assert abs(slope - difference) <= 2e-2 * max(1, abs(slope)), (case.seed, slope, difference)


def equal_calls():
    """What the header says are the same calls; and window beside causal."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((2, n, 2, 8), np.float32) for n in (5, 9, 9))
    same = lambda a, b: np.array_equal(fa3.forward(q, k, v, **a), fa3.forward(q, k, v, **b))
    assert same({"window": (-1, -1)}, {}) and same({"window": (-1, 0)}, {"causal": True})
    assert same({"window": [-1, -1], "causal": "top_left"}, {"causal": "top_left"})
    assert same({"window": (-1, -1), "causal": True}, {"causal": True})
    assert same({"window": (3, 2), "causal": True}, {"window": (np.int64(3), 0)})
    assert not same({"window": (3, 2)}, {"window": (3, 0)}) and not same({"window": (3, 0)}, {"causal": True})
    assert same({"chunk": 4, "causal": True}, {"chunk": 4, "causal": "bottom_right"})
    assert not same({"chunk": 4, "causal": True}, {"chunk": 4})
    plan = fa3.forward_schedule(q, k, v, window=(3, 0), return_lse=True)
    assert plan.shape == (0,) and same({"window": (3, 0), "schedule": plan}, {"window": (3, 0)})


def given_output():
    """Rows of no sequence stay as they are, whatever lies between the others."""
    random = (Case(seed, "packed", "packed") for seed in range(99))
    case = next(case for case in random if "seqused_q" in case.how and case.batch > 2)
    q = case.arrays["q"]
    o = fa3.forward(**case.arrays, **case.how)
    room = np.full((len(q) + 5, case.heads, case.dv + 3), 7, np.float32)
    out = room[5:, :, :-3]
    found, lse = fa3.forward(**case.arrays, **case.how, out=out, return_lse=True)
    assert found is out and lse.shape == (case.heads, len(q))
    used = np.concatenate([index[:, 0] for index in case.rows_q])
    assert 0 < len(used) < len(q) and np.array_equal(out[used], o[used])
    room[5:, :, :-3][used] = 7
    assert (room == 7).all()
    refused(ValueError, "o.dim[0] is", fa3.forward, **case.arrays, **case.how, out=room[:, :, :-3])
    how = {**case.arrays, **case.how}
    refused(ValueError, "out and out_dtype are given", fa3.forward, **how, out=out, out_dtype="float32")
    refused(TypeError, "out is list", fa3.forward, **how, out=[1])


def planned():
    """Which kernel, and how much of it, by the arguments alone: the maxima bound the work."""
    q, k = np.empty((600, 8, 128), np.float16), np.empty((40, 16, 2, 128), np.float16)
    how = {"cu_seqlens_q": np.zeros(9, np.int32), "page_table": np.zeros((8, 40), np.int32)}
    tiles = lambda **more: fa3.kernel_info(q, k, k, causal=True, **how, **more).tiles
    assert fa3.kernel_info(q, k, k, causal=True, **how).name.startswith("fa3_fwdplanned")
    assert tiles(max_seqlen_q=600) == tiles() > tiles(max_seqlen_q=1) > 0


def maxima():
    """What the library is told: those that are given, and otherwise what the shapes allow."""
    told, run = [], fa3._arrays.NumPyArrays.run

    def asked(rows_q, rows_k, **how):
        fa3.forward(*(np.zeros((*rows, 2, 8), np.float32) for rows in (rows_q, rows_k, rows_k)), **how)
        return told.pop()

    fa3._arrays.NumPyArrays.run = lambda self, params: told.append((params.max_seqlen_q, params.max_seqlen_k))
    try:
        sums = np.array([0, 3], np.int32)
        assert asked((7,), (9,), cu_seqlens_q=sums, cu_seqlens_k=sums) == (7, 9)
        assert asked((7,), (9,), cu_seqlens_q=sums, cu_seqlens_k=sums, max_seqlen_q=4, max_seqlen_k=5) == (4, 5)
        none = np.zeros(2, np.int32)
        assert asked((0,), (0,), cu_seqlens_q=none, cu_seqlens_k=none) == (1, 1)
        assert asked((1, 7), (9,), cu_seqlens_k=sums) == (0, 9)
        assert asked((7,), (1, 9), cu_seqlens_q=sums) == (7, 0)
        assert asked((7,), (1, 9), cu_seqlens_q=sums, max_seqlen_k=np.int32(8)) == (7, 8)
    finally:
        fa3._arrays.NumPyArrays.run = run


def refusals():
    normal = lambda *dims: np.random.default_rng(1).standard_normal(dims, np.float32)
    ints = lambda *numbers: np.array(numbers, np.int32)
    q, k, v = normal(2, 3, 4, 8), normal(2, 9, 2, 8), normal(2, 9, 2, 8)
    run = lambda **how: fa3.forward(**{"q": q, "k": k, "v": v, **how})
    flat = {"q": q.reshape(6, 4, 8), "cu_seqlens_q": ints(0, 3, 6)}
    no = lambda text, kind=ValueError, **how: refused(kind, text, run, **how)
    for name in fa3._calls.forward.INTEGERS:
        for dtype in (np.int64, np.int16, np.uint32, np.float32):
            no(f"{name}.dtype is {np.dtype(dtype).name}, must be int32", **{name: np.zeros(2, dtype)})
        no(f"{name} is list, must be", TypeError, **{name: [0, 1]})
    no("sinks.dtype is fp16, must be fp32", sinks=np.zeros(4, np.float16))
    no("sinks.dim[0] is 3, must be the query heads, 4", fa3.InvalidArgument, sinks=normal(3))
    no("q has 4 dimensions", cu_seqlens_q=ints(0, 3, 6))
    no("q has 3 dimensions", q=flat["q"])
    no("q.rank is 2", q=q[0, 0])
    no("k has 4 dimensions", cu_seqlens_k=ints(0, 3, 6))
    no("seqused_k.dim[0] is 3, must be cu_seqlens_q.dim[0] - 1, 2", **flat, seqused_k=ints(1, 2, 3))
    no("page_table.dim[0] is 1, must be q.dim[0], 2", page_table=ints([0, 1]))
    pages = {"page_table": ints([0], [1])}
    for more in ({"cache_batch_idx": ints(0, 1)}, {"leftpad_k": ints(0, 1)}):
        no(f"page_table and {next(iter(more))} cannot be had together", fa3.Unsupported, **pages, **more)
    no("max_seqlen_q is 2, must be 0 or q.dim[1]", max_seqlen_q=2)
    no("max_seqlen_k is 10, must be from 0 to k.dim[1], which is 9", max_seqlen_k=10)
    no("max_seqlen_k is 10, must be from 0 to page_table.dim[1] * k.dim[1]", **pages, max_seqlen_k=10)
    no("max_seqlen_q is 0, must be at least 1", **flat, max_seqlen_q=0)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        no(f"{name} is -1, must be from 0 to {2**31 - 1}", **{name: -1})
        no(f"{name} is {2**32 + 3}, must be from 0", **{name: 2**32 + 3})
        no(f"{name} is 3.0, must be an int", TypeError, **{name: 3.0})
    for window in (3, (1, 2, 3), "ab"):
        no("window", TypeError, window=window)
    no("window[0] is -2, must be from -1", window=(-2, 0))
    no("window[1] is -2, must be from -1", window=(0, -2), causal=True)
    no(f"window[1] is {2**31}, must be from -1", window=(0, 2**31))
    no("chunk is 0, must be from 1", chunk=0)
    no("chunk is (4, 0), must be an int", TypeError, chunk=(4, 0))
    no("window and chunk are given", window=(1, 1), chunk=4)
    no("causal is 'top_left', but with window", window=(1, 1), causal="top_left")
    no("causal is 'top_left', but with chunk", chunk=2, causal="top_left")
    no("schedule is a tensor of float32 with 1 dimensions", schedule=normal(3), window=(1, 1))
    refused(TypeError, "attention has no argument block_table", fa3.attention, q, k, v, block_table=ints(0))
    refused(TypeError, "attention has no argument q_scale", fa3.attention, q, k, v, q_scale=normal(1))
    refused(TypeError, "forward_schedule has no argument chunks", fa3.forward_schedule, q, k, v, chunks=2)
    backward = lambda **more: fa3.backward(q, q, k, v, q, normal(2, 2, 3), **more)
    refused(ValueError, "seqused_q.dtype is int64, must be int32", backward, seqused_q=np.array([1, 2]))
    refused(TypeError, "sinks is list", backward, sinks=[1, 2])
    refused(TypeError, "max_seqlen_k is 2.5, must be an int", backward, max_seqlen_k=2.5)
    refused(ValueError, "window and chunk are given", backward, window=(1, 1), chunk=3)
    refused(TypeError, "page_table", backward, page_table=ints(0))
    refused(TypeError, "kernel_info has no argument scale", fa3.kernel_info, q, k, v, scale=2)
    refused(ValueError, "seqused_k.dtype is int64", fa3.forward_schedule, q, k, v, seqused_k=np.array([1, 2]))


def empty():
    """No sequences, no rows, no keys."""
    ints = lambda *numbers: np.array(numbers, np.int32)
    rows = lambda *dims: np.ones((*dims, 2, 8), np.float32)
    o, lse = fa3.forward(rows(0), rows(0), rows(0), cu_seqlens_q=ints(0), cu_seqlens_k=ints(0), return_lse=True)
    assert o.shape == (0, 2, 8) and lse.shape == (2, 0)
    sinks = np.array([0.5, -np.inf], np.float32)
    sums = {"cu_seqlens_q": ints(0, 3, 3), "cu_seqlens_k": ints(0, 0, 0)}
    o, lse = fa3.forward(rows(3), rows(0), rows(0), **sums, sinks=sinks, return_lse=True)
    assert not o.any() and (lse == sinks[:, None]).all()


for case in (values, centered, gradients, equal_calls, given_output, planned, maxima, refusals, empty):
    case()
print("NumPy agrees")
