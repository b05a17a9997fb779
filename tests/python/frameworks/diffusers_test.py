"""fa3 as a backend of diffusers' attention dispatcher: its results and gradients beside those of the native backend,
with masks of keys, by name in a context and in a tiny transformer of diffusers; refusals. Argument: the library.
Skipped without torch and diffusers."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch", "diffusers")
import diffusers  # noqa: E402
import torch  # noqa: E402
from diffusers.models import attention_dispatch as dispatch  # noqa: E402

fa3.load(sys.argv[1])
refused(ValueError, "name is 'native', which is a backend of diffusers already", fa3.register_diffusers, "native")
fa3.register_diffusers()
fa3.register_diffusers()  # again
fa3.register_diffusers("fa3_too")
generator = torch.Generator().manual_seed(1)
rows = lambda seqlen, heads: torch.randn(2, seqlen, heads, 16, generator=generator, requires_grad=True)


def close(found, expected, what):
    error = (found - expected).abs().max() / expected.abs().max()
    assert found.shape == expected.shape and error <= 1e-5, (what, error.item())


def calls():
    q, k, v = rows(9, 4), rows(13, 4), rows(13, 4)
    seen = torch.rand(2, 13, generator=generator) < 0.6
    cases = {
        "all keys": (q, k, v, {}),
        "a scale": (q, k, v, {"scale": 0.4}),
        "causal": (rows(13, 4), k, v, {"is_causal": True}),
        "grouped": (q, rows(13, 2), rows(13, 2), {"enable_gqa": True}),
        "a mask of keys": (q, k, v, {"attn_mask": seen[:, None, None]}),
        "the mask of all": (q, k, v, {"attn_mask": seen[:1, None, None]}),
    }
    for what, (q, k, v, how) in cases.items():
        results = []
        for backend in ("native", "fa3"):
            o = dispatch.dispatch_attention_fn(q, k, v, **how, backend=backend)
            results.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v))])
        for found, expected in zip(results[1], results[0]):
            close(found, expected, what)
    run = lambda **how: dispatch.dispatch_attention_fn(*cases["all keys"][:3], **how, backend="fa3")
    o, lse = run(attention_kwargs={"return_lse": True})
    expected = torch.einsum("bihd,bjhd->bihj", *cases["all keys"][:2]).div(4).logsumexp(-1)
    close(o, run(), "O beside LSE"), close(lse, expected, "LSE")
    no = NotImplementedError
    refused(no, "dropout_p is 0.5", run, dropout_p=0.5)
    refused(no, "attn_mask is torch.float32", run, attn_mask=torch.zeros(2, 1, 1, 13))
    refused(no, "with dims (2, 1, 9, 13)", run, attn_mask=torch.ones(2, 1, 9, 13, dtype=torch.bool))
    refused(no, "is_causal is True with 9 queries and 13 keys", run, is_causal=True)
    refused(no, "_parallel_config", run, parallel_config=object())


def model():
    """A transformer for images, and a pass with a context: how often fa3 is called is counted."""
    sizes = {"patch_size": 2, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
             "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
             "axes_dims_rope": (4, 4, 8)}  # fmt: skip
    torch.manual_seed(2)
    flux = diffusers.FluxTransformer2DModel(**sizes).eval()
    drawn = lambda *dims: torch.randn(*dims, generator=generator)
    given = {"hidden_states": drawn(1, 16, 4), "encoder_hidden_states": drawn(1, 7, 32), "timestep": torch.ones(1),
             "pooled_projections": drawn(1, 32), "img_ids": torch.arange(48.0).reshape(16, 3) % 4,
             "txt_ids": torch.zeros(7, 3)}  # fmt: skip
    count = []
    from fa3._frameworks import diffusers as _diffusers

    counted = lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: (
        count.append(1) or _diffusers.attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    )
    dispatch._AttentionBackendRegistry.register(dispatch.AttentionBackendName("fa3_too"))(counted)
    with torch.no_grad():
        expected = flux(**given).sample
        with dispatch.attention_backend("fa3_too"):
            close(flux(**given).sample, expected, "in a context")
        assert len(count) == 2, count
        flux.set_attention_backend("fa3_too")
        close(flux(**given).sample, expected, "of a model")
        assert len(count) == 4, count


calls()
model()
print(f"diffusers {diffusers.__version__} agrees")
