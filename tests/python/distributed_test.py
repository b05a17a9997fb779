"""fa3.distributed: layouts and calls for many sizes without processes, and whether the library takes them; then
processes by gloo on the CPU, each method with outputs and gradients against fa3.attention of one process, checkpoints,
torch.compile, refusals, which all ranks raise, a rank that does not come and one that dies. Arguments: the library;
--long: 8 processes, 100 repetitions. Skipped without torch. The same with NCCL where there are two Hopper GPUs; where
not, it says so."""

import contextlib
import copy
import datetime
import io
import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from support import ROOT, attention, fa3, need, refused

need("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor.experimental import context_parallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fa3.distributed as parallel  # noqa: E402
from fa3.distributed import agreement, cost_model, kernels, layouts, methods, plans  # noqa: E402

# After which ranks wait no longer for one that does not come: in a group of its own, and in the world.
LATE, LATEST = datetime.timedelta(seconds=8), datetime.timedelta(seconds=240)


# ---- without processes ----


def positions(pieces):
    return [x for start, end in pieces for x in range(start, end)]


def sees(i, j, left, right):
    return (left < 0 or j >= i - left) and (right < 0 or j <= i + right)


def pairs(call, q, k):
    """The positions that a call's mask, in the bottom right corner of each document, brings together."""
    cu_q = call.cu_seqlens_q or (0, call.q_end - call.q_start)
    cu_k = call.cu_seqlens_k or (0, call.k_end - call.k_start)
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        for i, j in itertools.product(range(b - a), range(d - c)):
            if sees(i + (d - c) - (b - a), j, call.left, call.right):
                yield q[call.q_start + a + i], k[call.k_start + c + j]


def layouts_exhaustively():
    """Each position is on one rank, and each pair that the mask of the whole shows is in one call."""
    for ranks, seqlen, layout in itertools.product((1, 2, 3, 4), (0, 1, 2, 5, 7, 12, 13), layouts.NAMES):
        parts = [layouts.pieces(layout, ranks, seqlen, rank) for rank in range(ranks)]
        assert sorted(x for part in parts for x in positions(part)) == list(range(seqlen)), (parts, seqlen)
        assert max(map(layouts.rows, parts)) - min(map(layouts.rows, parts)) <= 1, parts
        whole = layouts.union(parts)
        steps = layouts.transfers(parts, whole)
        assert [positions(parts[i])[place + x] for _, i, place, n in steps for x in range(n)] == positions(whole)
        documents = {(0, seqlen), (0, seqlen // 3, seqlen // 3, seqlen), tuple(range(seqlen + 1)) if seqlen else (0, 0)}
        for cu, left, right in itertools.product(documents, (-1, 0, 1, 3, 20), (-1, 0, 1, 3, 20)):
            number = {x: i for i, ends in enumerate(zip(cu, cu[1:])) for x in range(*ends)}
            # A batch has one document.
            for q, k, packed in itertools.product(parts, (*parts, whole), (True, False)[: 1 + (len(cu) == 2)]):
                calls = layouts.calls(q, k, cu, left, right, packed)
                assert packed or not any(call.cu_seqlens_q for call in calls), calls
                expected = [(i, j) for i in positions(q) for j in positions(k)
                            if number[i] == number[j] and sees(i, j, left, right)]  # fmt: skip
                for some in (calls, layouts.fused(calls)):
                    found = [pair for call in some for pair in pairs(call, positions(q), positions(k))]
                    assert sorted(found) == expected, (q, k, cu, left, right, some)
                    assert layouts.products(some) == len(expected), (q, k, cu, left, right, some)
                first, end = layouts.extent(calls)
                assert all(call.k_start >= 0 for call in layouts.moved(calls, first)) and end <= layouts.rows(k)


def few_calls():
    """Zigzag chunks are two ordinary causal calls on a prefix of all keys; documents of a chunk are one call."""
    whole = (layouts.Piece(0, 64),)
    for rank in range(4):
        calls = layouts.calls(layouts.pieces("zigzag", 4, 64, rank), whole, (0, 64), -1, 0, False)
        ends = (rank + 1) * 8, (8 - rank) * 8
        assert [call.k_end for call in calls] == (list(ends) if rank < 3 else [40]), calls
        assert all((call.k_start, call.left, call.right) == (0, -1, 0) for call in calls), calls
    for rank, other in itertools.product(range(4), range(4)):  # one call for any other rank's keys
        mine, theirs = (layouts.pieces("zigzag", 4, 64, x) for x in (rank, other))
        (call,) = layouts.fused(layouts.calls(mine, theirs, (0, 64), -1, 0, False))
        rows, keys = (0 if other <= rank else 8, 16), (0, 8 if other < rank else 16)
        assert call == layouts.Call(*rows, *keys, -1, 0 if other == rank else -1), call
    calls = layouts.calls(layouts.pieces("contiguous", 2, 64, 1), whole, (0, 10, 20, 40, 50, 64), -1, 0, True)
    assert calls == (layouts.Call(0, 32, 20, 64, -1, 0, (0, 8, 18, 32), (0, 20, 30, 44)),), calls


def costs_without_processes():
    """By the numbers of a card with one second for a product or a byte sent."""
    slow = cost_model.Card(1.0, 1.0, 1.0, 1.0, 0.0, math.inf)
    problem = cost_model.Problem(4, 0, "zigzag", 64, (0, 64), -1, 0, 1, 8, 2, 4, 4, 2)
    found = {cost.method: cost for cost in cost_model.table(problem, slow)}
    assert set(found) == {"all_gather", "ring", "all_to_all"}, found
    chunk = 16 * 2 * (4 + 4) * 2  # bytes of k and v
    products = 64 * 65 // 2 * 8 * 2 * (4 + 4) / 4  # a rank's share of what a causal mask shows
    gathered = found["all_gather"]
    assert gathered.sent_forward == 3 * chunk and gathered.sent_backward == 3 * 3 * chunk, gathered
    assert gathered.forward == products + 3 * chunk, (gathered, products)
    ring = found["ring"]  # whose results are float32, and whose transfers hide
    assert ring.memory <= gathered.memory and math.isclose(ring.forward, cost_model.UNROUNDED * products), found
    merging = cost_model.table(problem, slow._replace(memory=1.0))
    (ring,) = [cost for cost in merging if cost.method == "ring"]
    # The last rank has results of all of its 16 rows for each rank; they are read once in float32, and written merged.
    assert ring.forward - found["ring"].forward == (4 * 16 * 4 + 16 * 2) * 8 * 4, (ring, found["ring"])
    # Gradients of keys go home as they are where one call has them all.
    assert found["ring"].sent_backward == 2 * found["ring"].sent_forward, found["ring"]
    # A window takes the ring to its neighbours alone.
    window = problem._replace(layout="contiguous", left=4)
    (best, *_) = cost_model.table(window, slow)
    assert best.method == "ring" and best.sent_forward == chunk / 4, best
    lines = str(cost_model.table(problem, cost_model.CARDS["H100"])).splitlines()
    assert len(lines) == 4 and "memory MB" in lines[0], lines


def slots():
    """Each row's results have slots of their own; all of them are merged where there are more than so many."""
    for ranks, seqlen, layout in itertools.product((1, 2, 5, 8), (3, 40), layouts.NAMES):
        nodes = tuple(layouts.pieces(layout, ranks, seqlen, rank) for rank in range(ranks))
        windows = (-1, 0), (-1, -1), (3, 1)
        for method, rank, window in itertools.product(("ring", "all_gather"), range(ranks), windows):
            seat = plans.Seat(rank, ranks)
            plan = plans.Plan(plans.Spread(plans.ALONE, seat, method, (), nodes, (0, seqlen), *window, 1))
            have, results = [set() for _ in range(plan.rows)], [0] * plan.rows
            for job in (job for step in plan.steps for job in step.jobs):
                rows = range(job.call.q_start, job.call.q_end)
                if job.folds:
                    have = [{0} if some else set() for some in have]
                assert job.slot < plan.slots <= plans.SLOTS and not any(job.slot in have[i] for i in rows), (plan, job)
                assert job.is_first == all(results[i] == 0 for i in rows), (plan, job)
                assert plan.mixes or len({results[i] == 0 for i in rows}) == 1, (plan, job)
                for i in rows:
                    have[i].add(job.slot)
                    results[i] += 1
            assert max(results, default=0) == plan.most and (method == "ring" or plan.most <= 1), (plan, results)
            assert plan.has_gaps or all(len(some) == plan.slots for some in have), (plan, have)
            assert all(results), (plan, results)  # each row sees itself


class Kernels(kernels.Place):
    """Where a CUDA device would be: it is asked what an H100 takes."""

    def __init__(self):
        self.device, self.library = torch.device("cpu"), fa3._abi.library()

    def workspace_size(self, params):
        return self.library.workspace_size(params, 132)

    def check(self, params):
        self.library.check(params)


INT32_MAX = 2**31 - 1
MASKS = [(True, None), (False, None), (True, (64, 0)), (True, (3, 0)), (False, (2, 9)), (False, (-1, 4)),
         (False, (7, -1)), (True, (INT32_MAX, 0)), (False, (INT32_MAX, INT32_MAX))]  # fmt: skip


def small_plans():
    """(ranks, ranks of a node, method, layout, mask, tokens, where documents begin or None)"""
    for ranks, layout, mask in itertools.product(range(1, 9), layouts.NAMES, MASKS):
        pairs = [("two_level", inside) for inside in {4: (2,), 6: (2, 3), 8: (2, 4)}.get(ranks, ())]
        for method, inside in [("all_gather", 1), ("ring", 1), ("all_to_all", 1), *pairs]:
            for seqlen in (2, 13, 64 * ranks + 5):
                for cu in (None, (0, seqlen // 3, seqlen // 3, seqlen // 2 + 1, seqlen)):
                    yield ranks, inside, method, layout, mask, seqlen, cu


def taken():
    """The library takes each call of each rank's plan, forward and backward: of all methods, layouts and masks, packed
    and in a batch, for 1 to 8 ranks with as many tokens or not, some with none."""
    places, asked = (Kernels(), kernels.Place(torch.device("cpu"))), {}
    for n, (ranks, inside, method, layout, mask, seqlen, cu) in enumerate(small_plans()):
        place, dtype, d = places[0], torch.bfloat16, 64
        if n % 7 == 0:  # the reference takes other head_dims, too, but merges by eights
            place, dtype, d = places[1], torch.float32, 8 if method in ("ring", "two_level") else 5
        how, has_sinks = kernels.How(0.0, 2.0 if n % 3 == 0 else 0.0, False), n % 5 < 2
        problem = cost_model.Problem(
            ranks, inside if method == "two_level" else 0, layout, seqlen, cu or (0, seqlen),
            *layouts.sides(*mask, seqlen), 1 if cu else 2, 2 * ranks, ranks, d, d, dtype.itemsize, cu is not None,
        )  # fmt: skip
        assert cost_model.refusal(method, problem) is None, (method, problem)
        call = parallel._Call(problem, dtype, place.device, how, has_sinks, False, True)
        known = asked.setdefault((ranks, inside, method == "all_to_all", d, cu is None, how, has_sinks), set())
        for rank in range(ranks):
            seats = [plans.Seat(*x) for x in zip(divmod(rank, inside), (ranks // inside, inside))]
            try:
                call.rehearsed(method, *seats, place, known)
            except ValueError as error:
                raise AssertionError(f"{method}, rank {rank} of {problem}: {error}") from error
    assert n > 3000, n


def light():
    """import fa3 imports neither torch nor fa3.distributed."""
    code = 'import sys, fa3; assert not {"torch", "fa3.distributed"} & set(sys.modules), "heavy"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python")}
    subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True)


# ---- one process of several ----


class World:
    """What each process has: its rank, a device, groups of the first ranks."""

    def __init__(self, rank, size, device):
        self.rank, self.size, self.device = rank, size, device
        self.groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.close = 4e-6 if device == "cpu" else 2.0**-5
        if size >= 4:  # an even number: two nodes
            half = size // 2
            inside = [dist.new_group(list(range(first, first + half))) for first in (0, half)]
            across = [dist.new_group([first, first + half]) for first in range(half)]
            self.pair = across[rank % half], inside[rank // half]

    def inputs(self, seqlen, heads=4, heads_kv=2, batch=2, d=8, dv=16, packed=False, seed=1):
        """q, k, v and the gradients of o and lse, the same in each process."""
        generator = torch.Generator().manual_seed(seed)
        lead = (seqlen,) if packed else (batch, seqlen)
        dims = (*lead, heads, d), (*lead, heads_kv, d), (*lead, heads_kv, dv), (*lead, heads, dv)
        tensors = [torch.randn(x, generator=generator).to(self.device, self.dtype) for x in dims]
        dlse = torch.randn((*lead[:-1], heads, seqlen), generator=generator).to(self.device)
        return [*tensors, dlse]


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def whole(q, k, v, dout, dlse, cu_seqlens=None, sinks=None, **how):
    """[o, lse, dq, dk, dv] of one process, with sinks their gradient, too."""
    if cu_seqlens is not None:
        sums = torch.as_tensor(cu_seqlens, dtype=torch.int32, device=q.device)
        how = {**how, "cu_seqlens_q": sums, "cu_seqlens_k": sums}
    inputs = leaves(q, k, v, *([] if sinks is None else [sinks]))
    named = {} if sinks is None else {"sinks": inputs[3]}
    o, lse = fa3.attention(*inputs[:3], return_lse=True, **named, **how)
    return [o, lse, *torch.autograd.grad((o, lse), inputs, (dout, dlse))]


def spread(group, layout, q, k, v, dout, dlse, sinks=None, call=None, **how):
    """The same of this rank's tokens, and of sinks summed over ranks."""
    packed = "cu_seqlens" in how
    cut = lambda x, dim=0 if packed else 1: parallel.shard(x, group, layout, dim=dim)
    inputs = leaves(*map(cut, (q, k, v)), *([] if sinks is None else [sinks]))
    named = {} if sinks is None else {"sinks": inputs[3]}
    call = call or parallel.attention
    o, lse = call(*inputs[:3], group, layout=layout, return_lse=True, **named, **how)
    assert o.shape == cut(dout).shape and o.dtype == q.dtype and lse.dtype == torch.float32
    found = [o, lse, *torch.autograd.grad((o, lse), inputs, (cut(dout), cut(dlse, -1)))]
    if sinks is not None and not isinstance(group, tuple):
        dist.all_reduce(found[5], group=group)
    elif sinks is not None:
        dist.all_reduce(found[5])
    return found


def cut_whole(group, layout, results, packed):
    """Of one process's results those of this rank."""
    dims = [0 if packed else 1, -1, *[0 if packed else 1] * 3]
    return [parallel.shard(x, group, layout, dim=dim) for x, dim in zip(results, dims)] + results[5:]


def same(found, expected, close, what):
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv", "dsinks"), found, expected):
        assert x.shape == y.shape and x.dtype == y.dtype, (what, name, x.shape, y.shape)
        worst = (x.double() - y.double()).abs().max().item() if x.numel() else 0
        assert worst <= close * max(1.0, y.abs().max().item() if y.numel() else 0), (what, name, worst)


DOCUMENTS = (0, 3, 3, 17, 18, 29, 37)
# (method, layout, heads, heads_kv, tokens, arguments); "sinks" stands for a tensor of them
CASES = [
    ("all_gather", "zigzag", 4, 2, 24, {"causal": True}),
    ("all_gather", "zigzag", 3, 1, 25, {"causal": True, "window": (5, 0), "sinks": True, "softcap": 2.0}),
    ("all_gather", "contiguous", 4, 4, 11, {"window": (3, 2), "softmax_scale": 0.3}),
    ("all_gather", "zigzag", 4, 2, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    ("ring", "zigzag", 4, 2, 24, {"causal": True, "softcap": 2.0, "deterministic": True}),
    ("ring", "zigzag", 2, 1, 25, {"sinks": True, "deterministic": True}),
    ("ring", "contiguous", 4, 4, 23, {"causal": True, "window": (4, 0), "sinks": True}),
    ("ring", "contiguous", 4, 1, 13, {"window": (2, 9)}),
    ("ring", "zigzag", 4, 2, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    ("ring", "contiguous", 2, 2, 37, {"window": (4, 1), "cu_seqlens": DOCUMENTS}),
    ("all_to_all", "zigzag", 12, 6, 24, {"causal": True, "sinks": True}),
    ("all_to_all", "zigzag", 12, 1, 25, {"causal": True, "window": (6, 0), "softcap": 2.0}),
    ("all_to_all", "contiguous", 6, 6, 37, {"causal": True, "cu_seqlens": DOCUMENTS, "sinks": True}),
    (None, "zigzag", 4, 2, 3, {"causal": True}),
    ("ring", "zigzag", 4, 2, 41, {"causal": True, "window": (5, 0), "sinks": True}),
    ("ring", "zigzag", 2, 2, 40, {"window": (3, 6)}),
    ("all_gather", "zigzag", 2, 1, 2, {"window": (1, 0), "cu_seqlens": (0, 0, 2)}),
    ("ring", "contiguous", 2, 1, 1, {"causal": True}),
    ("all_to_all", "zigzag", 6, 6, 1, {"window": (0, 0)}),
]


def run_case(world, group, case, seed=1):
    method, layout, heads, heads_kv, seqlen, how = case
    how, packed = dict(how), "cu_seqlens" in how
    inputs = world.inputs(seqlen, heads, heads_kv, packed=packed, seed=seed)
    if how.pop("sinks", False):
        how["sinks"] = torch.linspace(-1, 2, heads, device=world.device)
    expected = cut_whole(group, layout, whole(*inputs, **how), packed)
    found = spread(group, layout, *inputs, method=method, seqlen=seqlen, **how)
    same(found, expected, world.close, case)
    if method == "all_gather" and world.device == "cpu":  # rows are computed as in one process, on keys in one order
        assert all(torch.equal(x, y) for x, y in zip(found[:3], expected)), case
    return found


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


def checkpointed(world):
    if world.rank >= 2:
        return
    group, inputs = world.groups[2], world.inputs(24, 4, 2)
    for method in ("all_gather", "ring", "all_to_all"):
        call = lambda *x, **how: checkpoint(lambda *y: parallel.attention(*y, **how), *x, use_reentrant=False)
        how = {"method": method, "causal": True, "deterministic": True}
        expected = spread(group, "zigzag", *inputs, **how)
        found = spread(group, "zigzag", *inputs, call=call, **how)
        assert all(torch.equal(x, y) for x, y in zip(found, expected)), method


def compiled(world):
    """One break of the graph, which fullgraph=True refuses."""
    if world.rank >= 2:
        return
    group = world.groups[2]
    q, k, v = (parallel.shard(x, group) for x in world.inputs(24)[:3])
    around = lambda q, k, v: parallel.attention(q * 2, k, v, group, causal=True, method="ring") + 1
    torch._dynamo.reset()
    assert torch.equal(torch.compile(around, backend="eager")(q, k, v), around(q, k, v))
    graphs = torch._dynamo.explain(around)(q, k, v)
    assert graphs.graph_break_count == 1, graphs
    refused(Exception, "disable", torch.compile(around, backend="eager", fullgraph=True), q, k, v)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 8 * 8), torch.nn.Linear(4 * 8, 32)

    def forward(self, x, attention):
        q, k, v = self.qkv(x).view(*x.shape[:2], 8, 8).split([4, 2, 2], 2)
        return x + self.out(attention(q, k, v).flatten(2))


def sharded(world):
    """A layer whose parameters FSDP2 spreads over the same ranks."""
    if world.rank >= 2:
        return
    torch.manual_seed(1)
    one = Layer().to(world.device, world.dtype)
    two = copy.deepcopy(one)
    x = torch.randn(2, 24, 32, device=world.device, dtype=world.dtype)
    expected = one(x, lambda *x: fa3.attention(*x, causal=True))
    expected.square().sum().backward()
    mesh = DeviceMesh.from_group(world.groups[2], world.device)
    fully_shard(two, mesh=mesh)
    for method in ("ring", "all_gather"):
        two.zero_grad()
        found = two(parallel.shard(x, mesh), lambda *x, m=method: parallel.attention(*x, mesh, method=m, causal=True))
        found.square().sum().backward()
        worst = [(found, parallel.shard(expected, mesh))]
        # FSDP2 takes the mean over ranks.
        worst += [(2 * b.grad.full_tensor(), a.grad) for a, b in zip(one.parameters(), two.parameters())]
        for a, b in worst:
            assert (a - b).abs().max() <= 4 * world.close * max(1.0, b.abs().max().item()), method


def inside_torch(world):
    """Buffers that torch's context_parallel has cut are cut as by zigzag."""
    if world.rank >= 2:
        return
    q, k, v, *_ = world.inputs(24)
    mesh, o = DeviceMesh.from_group(world.groups[2], world.device), fa3.attention(q, k, v, causal=True)
    buffers = [x.clone() for x in (q, k, v)]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * 3):
        found = parallel.attention(*buffers, mesh, causal=True)
    assert (found - parallel.shard(o, mesh)).abs().max() <= world.close


def outcome(group, call, *arguments, **named):
    """The error that all ranks of the group raise: its type and its text."""
    try:
        call(*arguments, **named)
        mine = "accepted"
    except Exception as error:
        mine = type(error), str(error)
    every = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    assert mine != "accepted" and len(set(every)) == 1, every
    return mine


def refused_alike(world):
    """Where one rank refuses a call, or ranks differ in arguments, all raise the same, and the next call is right."""
    if world.rank >= 4:
        return
    group, case = world.groups[4], ("ring", "contiguous", 4, 2, 40, {"causal": True, "window": (9, 0)})
    calls = world.inputs(40)[:3]
    q, k, v = (parallel.shard(x, group, "contiguous") for x in calls)
    usual = {"method": "ring", "layout": "contiguous", "causal": True}
    # The library refuses to merge these; the first rank has nothing to merge.
    d = 4 if world.device == "cpu" else 520
    odd = [x[..., :1].expand(*x.shape[:-1], d).contiguous() for x in (q, k, v)]
    with torch.no_grad():
        kind, text = outcome(group, parallel.attention, *odd, group, **usual)
    assert issubclass(kind, fa3.Fa3Error) and "head_dim" in text, (kind, text)
    # Ranks whose calls are refused for reasons of their own raise the first one's.
    check, uneven = kernels.Place.check, [parallel.shard(x, group, "contiguous") for x in world.inputs(42)[:3]]
    for call in ("forward", "backward"):

        def check_rows(place, params, call=call):
            if params.call == call:
                raise fa3.Unsupported(f"{call} of {params.q.dim[1]} rows", 2)
            check(place, params)

        kernels.Place.check = check_rows
        try:
            kind, text = outcome(group, parallel.attention, *leaves(*uneven), group, seqlen=42, **usual)
        finally:
            kernels.Place.check = check
        assert (kind, text) == (fa3.Unsupported, f"{call} of 11 rows"), (kind, text)
    one = lambda number, other: number if world.rank == 2 else other  # rank 2's in its place
    short = [x[:, :9] for x in (q, k, v)]
    differing = [
        (one(short, (q, k, v)), {"seqlen": 40}, ValueError, "q has 9 tokens, must have 10: rank 2 of 4"),
        (one(short, (q, k, v)), {}, ValueError, "seqlen is 40 on rank 0, but 36 on rank 2"),
        ((q, one(k[:, :9], k), v), {}, ValueError, "k has 9 tokens"),
        ((q, k, one(None, v)), {}, TypeError, "v is absent"),
        (one([x.half() for x in (q, k, v)], (q, k, v)), {}, ValueError, "dtype is"),
        ((q, one(k.half(), k), v), {}, fa3.InvalidArgument, "k.dtype is fp16"),
        (one([x.long() for x in (q, k, v)], (q, k, v)), {}, fa3.InvalidArgument, "q.dtype is int64"),
        ((one(q.clone().requires_grad_(), q), k, v), {}, ValueError, "requires_grad is False on rank 0, but True"),
        ((q, k, v), {"method": one("all_gather", "ring")}, ValueError, "method is 'ring' on rank 0, but 'all_gather'"),
        ((q, k, v), {"method": one("gather", "ring")}, ValueError, "method is 'gather'"),
        ((q, k, v), {"window": one((9, 0), (5, 0))}, ValueError, "window is (5, 0) on rank 0, but (9, 0) on rank 2"),
        ((q, k, v), {"layout": one("zigzag", "contiguous")}, ValueError, "layout is 'contiguous' on rank 0"),
        ((q, k, v), {"softcap": one(-1.0, None)}, fa3.InvalidArgument, "softcap is -1"),
        ((q, k, v), {"sinks": one(torch.zeros(4, device=world.device), None)}, ValueError, "sinks is False on rank 0"),
        ((q, k, v), {"sinks": torch.zeros(one(3, 4), device=world.device)}, fa3.InvalidArgument, "sinks.dim[0] is 3"),
    ]
    for tensors, how, error, message in differing:
        kind, text = outcome(group, parallel.attention, *tensors, group, **{**usual, **how})
        assert kind is error and message in text, (kind, text, message)
        run_case(world, group, case)
    packed, sums = [x[0] for x in (q, k, v)], (0, 7, 40)
    kind, text = outcome(group, parallel.attention, *packed, group, cu_seqlens=one((0, 8, 40), sums), **usual)
    assert kind is ValueError and "cu_seqlens is (0, 7, 40) on rank 0, but (0, 8, 40)" in text, (kind, text)
    kind, text = outcome(group, parallel.unshard, one(q[:, :9], q), group, "contiguous", seqlen=40)
    assert kind is ValueError and "x has 9 tokens" in text, (kind, text)
    kind, text = outcome(group, parallel.unshard, one(q[..., :4], q), group, "contiguous")
    assert kind is ValueError and "sizes is [2, 4, 8] on rank 0, but [2, 4, 4] on rank 2" in text, (kind, text)


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


def refused_in_pairs(world):
    """The same where two groups make one: nodes tell each other what their ranks told."""
    q, k, v = (parallel.shard(x, world.pair) for x in world.inputs(8 * world.size)[:3])
    for rank in range(world.size):
        one = lambda number, other, rank=rank: number if world.rank == rank else other
        short = [one(x[:, :7], x) for x in (q, k, v)]
        kind, text = outcome(None, parallel.attention, *short, world.pair, causal=True)
        assert kind is ValueError and "q has 7 tokens" in text, (rank, kind, text)
        kind, text = outcome(None, parallel.attention, q, k, v, world.pair, causal=True, window=one((3, 0), (4, 0)))
        assert kind is ValueError and "window is" in text and f"on rank {rank}" in text, (rank, kind, text)
        run_case(world, world.pair, ("two_level", "zigzag", 4, 2, 25, {"causal": True}))


def told_once(world):
    """Where hosts only enqueue, ranks tell each other about each kind of call once, and about each call if asked to."""
    group, told = dist.new_group([0, 1]), []  # made by all ranks, which count groups
    if world.rank >= 2:
        return
    q, k, v = (parallel.shard(x, group) for x in world.inputs(24)[:3])
    always, tell, kept = parallel._always, agreement._tell, agreement.KEPT
    agreement._tell = lambda team, text: told.append(text) or tell(team, text)
    try:
        parallel._always, agreement.KEPT = lambda x: False, 2
        for causal, expected in ((True, 1), (True, 1), (False, 2), (False, 2), (True, 2), ("top_left", 2)):
            parallel.attention(q, k, v, group, causal=causal)
            assert len(told) == expected, (causal, told)
        parallel.attention(q, k, v, group, window=(3, 0))
        parallel.attention(q, k, v, group, causal=True)  # has been forgotten, on all ranks alike
        assert len(told) == 4, told
        parallel._always = lambda x: True
        parallel.attention(q, k, v, group, causal=True)
        assert len(told) == 5, told
    finally:
        parallel._always, agreement._tell, agreement.KEPT = always, tell, kept


def refusals(world):
    group, outside = world.groups[min(3, world.size)], world.groups[1]
    if world.rank == 1:
        refused(ValueError, "must be a process group that this rank is in", parallel.shard, torch.ones(2, 2), outside)
    if world.size >= 4:
        some = [x[:, :4] for x in world.inputs(18, 6, 3)[:3]]
        text = "method is 'ring', but group is a pair"
        refused(ValueError, text, parallel.attention, *some, world.pair, method="ring")
    if world.rank >= 3 or world.size < 3:
        return
    q, k, v = (x[:, :6] for x in world.inputs(18, 6, 3)[:3])
    call = parallel.attention
    refused(ValueError, "q has 5 tokens, for layout 'zigzag'", call, q[:, :5], k[:, :5], v[:, :5], group)
    refused(ValueError, "q has 6 tokens, must have 7: rank 0 of 3", call, q, k, v, group, seqlen=19)
    refused(ValueError, "k has 4 tokens", call, q, k[:, :4], v[:, :4], group)
    refused(ValueError, "layout is 'zig'", call, q, k, v, group, layout="zig")
    refused(ValueError, "layout is None", parallel.shard, q, group, None)
    refused(ValueError, "method is 'gather'", call, q, k, v, group, method="gather")
    refused(ValueError, "method is 'two_level', but group", call, q, k, v, group, method="two_level")
    refused(ValueError, "group has two groups that share 3 ranks", call, q, k, v, (group, group))
    refused(ValueError, "group has 3 groups", call, q, k, v, (group,) * 3)
    refused(ValueError, "group is 'nccl'", call, q, k, v, "nccl")
    refused(ValueError, "q has 4 heads, for method 'all_to_all'", call, q[:, :, :4], k[:, :, :2], v[:, :, :2], group,
            method="all_to_all")  # fmt: skip
    four = [torch.cat([x, x[:, :, :heads]], 2) for x, heads in ((q, 6), (k, 1), (v, 1))]
    refused(ValueError, "k has 4 heads, for method 'all_to_all'", call, *four, group, method="all_to_all")
    refused(ValueError, "k.dim[3]", call, q, k[..., :4], v, group)
    refused(ValueError, "softcap", call, q, k, v, group, softcap=-1.0)
    refused(ValueError, "causal is 'left'", call, q, k, v, group, causal="left")
    refused(TypeError, "window is 3", call, q, k, v, group, window=3)
    refused(ValueError, "q has 4 dimensions, must have 3", call, q, k, v, group, cu_seqlens=(0, 18))
    packed = [x[0] for x in (q, k, v)]
    refused(ValueError, "cu_seqlens must begin with 0", call, *packed, group, cu_seqlens=(0, 19, 18))
    other = {"seqlen": 18, "cu_seqlens": (0, 17)}
    refused(ValueError, "seqlen is 18, but cu_seqlens ends with 17", call, *packed, group, **other)
    refused(ValueError, "card is 'T4'", call, q, k, v, group, card="T4")
    refused(NotImplementedError, "unshard has no derivative", parallel.unshard, *leaves(q), group)


def missing(world):
    """A rank that does not come, then one that dies: errors, and soon. Only gloo raises them in the process itself."""
    if world.device != "cpu":
        return
    last = world.size - 1
    q, k, v = leaves(*(parallel.shard(x) for x in world.inputs(48)[:3]))
    groups = {}
    for method in ("ring", "all_gather"):
        dist.barrier()  # by the world's timeout: a group is made by all of its ranks within its own
        groups[method] = dist.new_group(timeout=LATE)
    for method, group in groups.items():
        dist.barrier()
        start = time.monotonic()
        if world.rank == last and method == "all_gather":
            methods.gather = lambda *arguments: os._exit(0)  # when ranks have agreed on the call
        if world.rank == last and method == "ring":
            time.sleep(1.5 * LATE.total_seconds())
        else:
            text = "of the group did not come to the call within" if method == "ring" else ""
            refused(RuntimeError, text, parallel.attention, q, k, v, group, method=method, causal=True)
        # By the group's timeout, not the world's: how soon after it depends on what else runs here.
        assert time.monotonic() - start < LATEST.total_seconds(), (method, time.monotonic() - start)


def long(world):
    for seed, n, case in itertools.product(range(100), range(1, world.size + 1), CASES):
        heads = case[2:4]
        if case[0] == "all_to_all":  # one head of K and V stays one, which all ranks get
            heads = case[2] * n, case[3] * (n if case[3] > 1 else 1)
        if world.rank < n:
            run_case(world, world.groups[n], (*case[:2], *heads, *case[4:]), seed)
        if world.rank == 0 and (n, case) == (1, CASES[0]):
            print(f"repetition {seed}", flush=True)


def work(rank, size, device, folder, asked_long):
    torch.set_num_threads(1)
    fa3.load(sys.argv[1])
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/{device}", size)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LATEST)
    world = World(rank, size, device)
    four_ranked = [batched_windows, four_ranks, few_slots, rounded_once, refused_alike, refused_in_pairs] * (size >= 4)
    parts = [every_method, against_float64, *four_ranked, repeated, halves, strided, sent, told_once]
    for part in (*parts, checkpointed, compiled, sharded, inside_torch, refusals, *[long] * asked_long, missing):
        start = time.monotonic()
        part(world)
        if rank == 0:
            print(f"{device}: {part.__name__} {time.monotonic() - start:.1f} s", flush=True)
    if device == "cuda":
        dist.destroy_process_group()
    else:
        os._exit(0)  # a group that lost a rank cannot be taken down in order


def example(folder):
    """tools/examples/context_parallel.py with two processes, also of packed documents: it checks results itself."""
    table = pathlib.Path(folder, "times.csv")
    for documents in (1, 3):
        command = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                   ROOT / "tools/examples/context_parallel.py", "--library", sys.argv[1], "--csv", table, "--seqlens",
                   "96", "--documents", str(documents), "--heads", "4", "--heads-kv", "2", "--head-dim", "16",
                   "--repeats", "1"]  # fmt: skip
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=400,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(",") for line in table.read_text().splitlines()]
    methods_found = [row[rows[0].index("method")] for row in rows[1:]]
    assert methods_found == 2 * ["one GPU", "all_gather", "ring", "all_to_all"], methods_found
    assert all(float(row[rows[0].index("backward_us")]) > 0 for row in rows[1:])


def main():
    fa3.load(sys.argv[1])
    asked_long = "--long" in sys.argv
    for case in (light, layouts_exhaustively, few_calls, slots, taken, costs_without_processes):
        case()
        print(case.__name__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        example(folder)
        print("example", flush=True)
        size = 8 if asked_long else 4
        processes.spawn(work, (size, "cpu", folder, asked_long), size)
        gpus = min(torch.cuda.device_count() // 2 * 2, size)
        if gpus and torch.cuda.get_device_capability() == (9, 0):
            processes.spawn(work, (gpus, "cuda", folder, asked_long), gpus)
        else:
            print("SKIPPED: NCCL: torch finds no two GPUs of compute capability 9.0")
    print(f"torch {torch.__version__} agrees, {pathlib.Path(parallel.__file__).parent.name} too")


if __name__ == "__main__":
    main()
