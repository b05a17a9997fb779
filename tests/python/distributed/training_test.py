"""fa3.distributed in training: checkpoints, torch.compile, FSDP2, buffers of torch's context_parallel, and
tools/examples/context_parallel.py. Arguments: the library; --long: 8 processes. Skipped without torch; ranks.py says
where it runs."""

import copy
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from ranks import run, spread  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor.experimental import context_parallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fa3.distributed as parallel  # noqa: E402


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        example(folder)
    print("example", flush=True)
    run([checkpointed, compiled, sharded, inside_torch], [])
