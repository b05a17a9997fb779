"""tools/python/fa3 under torch's transforms, by which some derivatives would be lost without a word: torch.func and
forward mode, a softmax_scale that is learned; and arguments that torch would refuse in words that help nobody. All of
it is computed or refused by name. Argument: the library. Skipped without torch."""

import functools
import sys

from support import attention, fa3, need, refused

need("torch")
import torch  # noqa: E402
import torch.autograd.forward_ad as forward_mode  # noqa: E402

fa3.load(sys.argv[1])
torch.manual_seed(1)
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
HAS_NONE = "fa3 has no forward-mode derivatives"
q, tangent, k, v = (torch.randn(2, 5, heads, 8) for heads in (4, 4, 2, 2))
batches, tangents = torch.stack([q, 2 * q, -q]), torch.stack([tangent] * 3)


def ours(q):
    return fa3.attention(q, k, v, causal=True)


def plain(q):
    return attention(torch, q, k, v, True)[0]


def weighted(function):
    """A number that depends on all elements, each in its own way."""
    return lambda q: (function(q) * tangent).sum()


def close(found, expected, what):
    assert found.shape == expected.shape, what
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 1e-5, (what, error.item())


def reverse():
    """Gradients by torch.func, and of a batch at once."""
    func = torch.func
    for name, transform in (
        ("grad", lambda f: func.grad(weighted(f))(q)),
        ("vjp", lambda f: func.vjp(f, q)[1](tangent)[0]),
        ("jacrev", lambda f: func.jacrev(f)(q[:, :2])),
        ("vmap", lambda f: torch.vmap(f)(batches)),
        ("vmap of grad", lambda f: torch.vmap(func.grad(weighted(f)))(batches)),
        ("grad of vmap", lambda f: func.grad(lambda x: (torch.vmap(f)(x) * tangents).sum())(batches)),
        ("compiled", lambda f: torch.compile(func.grad(weighted(f)), backend="aot_eager")(q)),
    ):
        if name == "compiled" and VERSION <= (2, 11):
            print(f"SKIPPED: torch.compile of torch.func.grad: torch {torch.__version__} runs no custom op in it")
            continue
        close(transform(ours), transform(plain), name)
    by_k = lambda lse: func.grad(lambda k: lse(k).square().sum())(k)
    found = by_k(lambda k: fa3.attention(q, k, v, return_lse=True)[1])
    close(found, by_k(lambda k: attention(torch, q, k, v, False)[1]), "lse")
    twice = func.grad(lambda q: func.grad(weighted(ours))(q).sum())
    refused(NotImplementedError, "fa3.backward has no derivative", twice, q)


def graph():
    """A compiled graph has no question whether torch.func is at work: torch 2.4 cannot have it in one."""
    torch._dynamo.reset()  # it skips what it could not make a graph of before
    targets = []

    def backend(graph, inputs):
        targets.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    close(torch.compile(ours, backend=backend, fullgraph=True)(q), plain(q), "graph")
    assert len(targets) > 3 and torch._C._are_functorch_transforms_active not in targets, targets


def dual(function, x, direction):
    """The derivative of a function in forward mode, as torch has it without torch.func."""
    with forward_mode.dual_level():
        return forward_mode.unpack_dual(function(forward_mode.make_dual(x, direction))).tangent


def forward():
    """Forward mode is refused, however it comes."""
    func, no = torch.func, NotImplementedError
    jvp = lambda function: func.jvp(function, (q,), (tangent,))
    for transform in (
        jvp,
        lambda f: func.jacfwd(f)(q),
        lambda f: func.linearize(f, q),
        lambda f: func.hessian(weighted(f))(q),
        lambda f: jvp(func.grad(weighted(f))),
        lambda f: func.jvp(torch.vmap(f), (batches,), (tangents,)),
        lambda f: torch.vmap(lambda x, y: func.jvp(f, (x,), (y,)))(batches, tangents),
        lambda f: dual(f, q, tangent),
        lambda f: dual(f, q.clone().requires_grad_(), tangent),
        lambda f: torch.compile(lambda x, y: func.jvp(f, (x,), (y,)), backend="aot_eager")(q, tangent),
        lambda f: torch.compile(lambda x, y: dual(f, x, y), backend="aot_eager")(q, tangent),
    ):
        torch._dynamo.reset()
        refused(no, HAS_NONE, transform, ours)
    o, lse = fa3.forward(q, k, v, return_lse=True)
    refused(no, HAS_NONE, jvp, lambda q: fa3.backward(o, q, k, v, o, lse))
    refused(no, HAS_NONE, jvp, lambda o: fa3.combine(torch.stack([o, o]), torch.stack([lse, lse])))
    x, y = torch.randn(1, 7, 2, 16).bfloat16(), torch.ones(1, 7, 2, 16).bfloat16()
    refused(no, HAS_NONE, func.jvp, lambda x: fa3.quantize(x).scale, (x,), (y,))
    refused(no, HAS_NONE, dual, lambda k: fa3.attention(q, k, v), k, torch.ones_like(k))
    refused(no, HAS_NONE, dual, lambda v: fa3.attention(q, k, v), v, torch.ones_like(v))
    # Nobody asks for it where another tensor has a tangent.
    close(dual(lambda x: x * ours(q), q, tangent), tangent * plain(q), "a constant")


def underived():
    """No gradient flows through the calls that have none, and they say so."""
    x = torch.randn(1, 7, 2, 16).bfloat16().requires_grad_()
    refused(NotImplementedError, "fa3.quantize has no derivative", torch.autograd.grad, fa3.quantize(x).scale.sum(), x)
    parts = torch.stack([q, q]).requires_grad_()
    new = {"k": x, "v": None, "k_cache": x.detach().clone(), "v_cache": None}
    length = torch.zeros(1, dtype=torch.int32)
    refused(NotImplementedError, "fa3.append has no derivative", lambda: fa3.append(**new, cache_seqlens=length))
    with torch.no_grad():
        assert fa3.append(**new, cache_seqlens=length) is None and torch.equal(new["k_cache"], x)
    merged = fa3.combine(parts, torch.zeros(2, 2, 4, 5), return_lse=False)
    refused(NotImplementedError, "fa3.combine has no derivative", torch.autograd.grad, merged.sum(), parts)


def learned():
    """softmax_scale: a tensor of one number is one, but has no gradient."""
    run = lambda scale: fa3.attention(q, k, v, softmax_scale=scale)
    scale = torch.tensor(0.3)
    assert torch.equal(run(scale), run(0.3)) and torch.equal(run(scale[None]), run(0.3))
    parameter = torch.nn.Parameter(scale)
    with torch.no_grad():
        assert torch.equal(run(parameter), run(0.3))
    no, why = NotImplementedError, "softmax_scale has a gradient, which fa3 does not compute: multiply q by it"
    refused(no, why, run, parameter)
    refused(no, why, torch.func.grad(lambda scale: run(scale).sum()), scale)
    refused(no, why, torch.func.jvp, run, (scale,), (scale,))
    x = torch.randn(1, 7, 2, 16).bfloat16()
    refused(no, why, lambda: fa3.quantize(x, k_mean=torch.zeros(1, 2, 16), softmax_scale=parameter))
    o, lse = fa3.forward(q, k, v, return_lse=True)
    refused(no, why, lambda: fa3.backward(o, q, k, v, o, lse, softmax_scale=parameter))
    refused(TypeError, "softmax_scale is tensor([0.3000, 0.4000]), must be a number", run, torch.tensor([0.3, 0.4]))
    refused(TypeError, "softmax_scale is BatchedTensor", torch.vmap(run), torch.tensor([0.3, 0.4]))
    # What the message advises.
    close(torch.func.grad(lambda s: fa3.attention(q * s, k, v, softmax_scale=1.0).sum())(scale),
          torch.func.grad(lambda s: attention(torch, q, k, v, False, s)[0].sum())(scale), "advice")  # fmt: skip


def tensors():
    """What is no tensor as the library takes it is called by its name, in each call."""
    o, lse = fa3.forward(q, k, v, return_lse=True)
    x = torch.randn(1, 7, 2, 16).bfloat16()
    calls = (
        (fa3.attention, {"q": q, "k": k, "v": v}, {}),
        (fa3.forward, {"q": q, "k": k, "v": v}, {"v_mean": o}),
        (fa3.kernel_info, {"q": q, "k": k, "v": v}, {"q_scale": o}),
        (fa3.backward, {"dout": o, "q": q, "k": k, "v": v, "o": o, "lse": lse}, {"dlse": lse}),
        (fa3.quantize, {"x": x}, {"k_mean": o, "rotary_cos": o, "rotary_sin": o}),
        (functools.partial(fa3.append, k=x, v=None, k_cache=x, v_cache=None), {}, {"q": x, "page_table": x}),
        (fa3.combine, {"o_parts": torch.stack([o, o]), "lse_parts": torch.stack([lse, lse])}, {}),
    )
    jagged = torch.nested.nested_tensor([torch.zeros(3, 2, 8), torch.zeros(5, 2, 8)], layout=torch.jagged)
    strided = torch.nested.nested_tensor([torch.zeros(3, 2, 8), torch.zeros(5, 2, 8)])
    for call, needed, optional in calls:
        for name in needed:
            refused(TypeError, f"{name} is absent (None), must be a torch tensor", lambda: call(**{**needed, name: None}))
        for name in (*needed, *optional):
            run = lambda x: call(**{**needed, name: x})
            refused(TypeError, f"{name} is list, must be a torch tensor", run, [1.0])
            refused(NotImplementedError, f"{name} is a nested tensor", run, jagged)
            refused(NotImplementedError, f"{name} is a nested tensor", run, strided)
            refused(NotImplementedError, f"{name}.layout is torch.sparse_coo, must be", run, o.to_sparse())


def seeds():
    """All 64 bits of a seed reach the library."""
    x = torch.randn(1, 3, 1, 32).bfloat16()
    y, scale, seen = torch.empty(x.shape, dtype=torch.float8_e4m3fn), torch.empty(1, 1, 1), set()
    described = {"x": fa3.describe(x), "y": fa3.describe(y), "scale": fa3.describe(scale)}
    bits = lambda x: x.view(torch.uint8)
    for seed in (0, 2**63 - 1, 2**63, 2**64 - 1):
        fa3.library().reference(fa3.QuantizeParams(**described, flags=fa3.QUANTIZE_INCOHERENT, seed=seed))
        assert torch.equal(bits(fa3.quantize(x, incoherent=True, seed=seed).y), bits(y)), seed
        seen.add(tuple(bits(y).flatten().tolist()))
    assert len(seen) == 4
    for seed in (-1, 2**64):
        refused(ValueError, f"seed is {seed}, must be from 0 to 2**64 - 1", fa3.quantize, x, seed=seed)


for case in (reverse, graph, forward, underived, learned, tensors, seeds):
    case()
print(f"torch {torch.__version__}: computed or refused")
