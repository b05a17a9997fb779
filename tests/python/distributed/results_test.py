"""fa3.distributed.attention by processes: each method with outputs and gradients against fa3.attention of one process
and against float64, and as many bytes sent as the cost model says. Arguments: the library; --long: 8 processes, 100
repetitions. Skipped without torch; ranks.py says where it runs."""

import contextlib
import io
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import attention, fa3, need  # noqa: E402

need("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import CASES, DOCUMENTS, cut_whole, leaves, run, run_case, same, spread  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import fa3.distributed as parallel  # noqa: E402
from fa3.distributed import layouts, methods, plans  # noqa: E402


def every_method(world):
    for n, case in itertools.product((1, 2, 3), CASES):
        if world.rank < n <= world.size:
            run_case(world, world.groups[n], case)


def against_float64(world):
    """Each method's outputs and gradients, lse's among them, against plain attention."""
    if world.rank >= 2:
        return
    q, k, v, dout, dlse = world.inputs(24)
    doubles = leaves(*(x.double() for x in (q, k, v)))
    o, lse = attention(torch, *doubles, True)
    expected = [o, lse, *torch.autograd.grad((o, lse), doubles, (dout.double(), dlse.double()))]
    expected = [x.to(torch.float32 if i == 1 else q.dtype) for i, x in enumerate(expected)]
    for method in ("all_gather", "ring", "all_to_all"):
        found = spread(world.groups[2], "zigzag", q, k, v, dout, dlse, method=method, causal=True)
        same(found, cut_whole(world.groups[2], "zigzag", expected, False), world.close, method)


def few_slots(world):
    """Results of a ring are merged two by two."""
    if world.rank >= 4:
        return
    parallel._kinds.clear()
    plans.SLOTS, before = 2, plans.SLOTS
    try:
        for case in (CASES[4], CASES[5], CASES[8]):
            run_case(world, world.groups[4], case)
    finally:
        plans.SLOTS = before
        parallel._kinds.clear()


def rounded_once(world):
    """Results of a ring are merged in float32, also where they are merged two by two: O has the bits of one process
    where its rounding does not hang on the last bits of float32."""
    if world.rank >= 4 or world.device != "cpu":
        return
    dtype, world.dtype = world.dtype, torch.bfloat16
    q, k, v, dout, dlse = world.inputs(64)
    world.dtype = dtype
    expected = parallel.shard(fa3.attention(q, k, v), world.groups[4])
    before = plans.SLOTS
    for plans.SLOTS in (2, 4):
        parallel._kinds.clear()
        o = parallel.attention(*(parallel.shard(x, world.groups[4]) for x in (q, k, v)), world.groups[4], method="ring")
        differing = (o != expected).double().mean().item()
        assert differing < 0.005, (plans.SLOTS, differing)
    plans.SLOTS = before
    parallel._kinds.clear()


def batched_windows(world):
    """Rows of a batch under a window, whose chunks are parts of one document."""
    how = {"causal": True, "window": (64, 0)}
    for seqlen, layout in itertools.product((256, 331), layouts.NAMES):
        for method in ("all_gather", "ring", "all_to_all", None):
            if world.rank < 4:
                run_case(world, world.groups[4], (method, layout, 4, 4, seqlen, how))
        run_case(world, world.pair, ("two_level", layout, 4, 2, seqlen, how))


def four_ranks(world):
    for case in (CASES[0], CASES[5], CASES[8], (*CASES[10][:3], 2, *CASES[10][4:])):
        if world.rank < 4:
            run_case(world, world.groups[4], case)
    for case in (
        ("two_level", "zigzag", 4, 2, 25, {"causal": True, "sinks": True}),
        ("two_level", "zigzag", 4, 1, 37, {"causal": True, "cu_seqlens": torch.tensor(DOCUMENTS), "softcap": 2.0}),
        (None, "contiguous", 4, 2, 24, {"causal": True, "window": (5, 0)}),
    ):
        run_case(world, world.pair, case)
    mesh = init_device_mesh(world.device, (2, world.size // 2), mesh_dim_names=("across", "inside"))
    run_case(world, mesh, ("two_level", "zigzag", 4, 2, 25, {"causal": True}))
    run_case(world, mesh["inside"], ("ring", "zigzag", 4, 2, 25, {"causal": True}))
    x = world.inputs(13)[0]
    for group in (None, world.pair):
        for layout in parallel.LAYOUTS:
            back = parallel.unshard(parallel.shard(x, group, layout), group, layout, seqlen=13)
            assert torch.equal(back, x), (group, layout)


def repeated(world):
    """The same bits each time."""
    if world.rank < 3 <= world.size:
        first, second = (run_case(world, world.groups[3], CASES[5]) for _ in range(2))
        assert all(torch.equal(x, y) for x, y in zip(first, second))


def halves(world):
    """bfloat16, also under autocast; each partial result is rounded once more."""
    if world.rank >= 2:
        return
    dtype, close = world.dtype, world.close
    world.dtype, world.close = torch.bfloat16, 2.0**-5
    for case in (CASES[0], CASES[8], CASES[11]):
        run_case(world, world.groups[2], case)
    q, k, v = (parallel.shard(x, world.groups[2]) for x in world.inputs(24)[:3])
    world.dtype, world.close = dtype, close
    expected = parallel.attention(q, k, v, world.groups[2], method="ring")
    with torch.autocast(world.device, torch.bfloat16):
        found = parallel.attention(q.float(), k.float(), v.float(), world.groups[2], method="ring")
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


def sent(world):
    """As many bytes go round as the cost model says, on the rank that sends most."""
    if world.rank >= 2:
        return
    group, q = world.groups[2], None
    for layout, how in (("contiguous", {"window": (3, 0)}), ("zigzag", {}), ("contiguous", {})):
        q, k, v = (parallel.shard(x, group, layout) for x in world.inputs(16)[:3])
        counted, transfer = [0], methods.Transfer.__init__

        def count(self, team, to, sent, *rest):
            counted[0] += 0 if sent is None else sent.numel() * sent.element_size()
            transfer(self, team, to, sent, *rest)

        methods.Transfer.__init__ = count
        try:
            parallel.attention(q, k, v, group, method="ring", layout=layout, causal=True, **how)
        finally:
            methods.Transfer.__init__ = transfer
        most = torch.tensor(counted[0], device=world.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        table = parallel.costs(q, k, v, group, layout=layout, causal=True, **how)
        (expected,) = [cost.sent_forward for cost in table if cost.method == "ring"]
        assert most == expected, (layout, how, most, expected)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        parallel.attention(q, k, v, group, layout="contiguous", causal=True, explain=True)
    assert text.getvalue() == (f"{table}\nchosen: {table[0].method}\n" if world.rank == 0 else ""), text.getvalue()


def strided(world):
    """Tensors that lie otherwise on one rank, as the kernels do not take them."""
    if world.rank >= 2:
        return
    group = world.groups[2]
    usual = [parallel.shard(x, group) for x in world.inputs(24)[:3]]
    for method in ("ring", "all_gather", "all_to_all"):
        o = parallel.attention(*usual, group, method=method, causal=True)
        views = [x.mT.contiguous().mT if world.rank else x for x in usual]
        assert torch.equal(parallel.attention(*views, group, method=method, causal=True), o), method
        views = [torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if world.rank else x for x in usual]
        assert torch.equal(parallel.attention(*views, group, method=method, causal=True), o), method


def long(world):
    for seed, n, case in itertools.product(range(100), range(1, world.size + 1), CASES):
        heads = case[2:4]
        if case[0] == "all_to_all":  # one head of K and V stays one, which all ranks get
            heads = case[2] * n, case[3] * (n if case[3] > 1 else 1)
        if world.rank < n:
            run_case(world, world.groups[n], (*case[:2], *heads, *case[4:]), seed)
        if world.rank == 0 and (n, case) == (1, CASES[0]):
            print(f"repetition {seed}", flush=True)


if __name__ == "__main__":
    parts = [every_method, against_float64, repeated, halves, strided, sent]
    run([*parts, long] if "--long" in sys.argv else parts, [batched_windows, four_ranks, few_slots, rounded_once])
