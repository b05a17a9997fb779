"""Quantization to FP8 as a custom op of torch, and attention in FP8 that autograd can differentiate."""

from __future__ import annotations

import functools

import torch

from .. import _abi, _arrays
from .._calls import backward as _backward
from .attention import backward_op, empty, forward_op
from .derivatives import differentiable, no_derivative, remember_nothing


@torch.library.custom_op(
    "fa3::quantize",
    mutates_args=(),
    schema="(Tensor x, str scales, bool tiles, bool mean, int flags, int seed, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? k_mean, float softmax_scale) -> Tensor[]",
)
def quantize_op(x, *how):
    return [tensor for tensor in _arrays.quantize(x, *how) if tensor is not None]


@quantize_op.register_fake
def _(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale):
    batch, seqlen, heads, head_dim = x.shape
    made = [
        empty(x, _arrays.tile_dims(*x.shape) if tiles else x.shape, "float8_e4m3fn"),
        empty(x, _arrays.scale_dims(scales, batch, heads, seqlen), "float32"),
    ]
    if mean:
        made.append(empty(x, (batch, heads, head_dim), "float32"))
    if k_mean is not None:
        made.append(empty(x, (batch, heads, seqlen), "float32"))
    return made


_quantize = differentiable(quantize_op, remember_nothing, no_derivative("quantize"))


def quantize(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale):
    seed -= 2**64 if seed >= 2**63 else 0  # an op's numbers are signed; the library takes it as it was
    made = _quantize(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale)
    return _arrays.Quantized(*made[:2], made[2] if mean else None, made[-1] if k_mean is not None else None)


@functools.lru_cache(maxsize=64)
def _signs(seed, head_dim):
    """Those of FA3_QUANTIZE_INCOHERENT for the columns."""
    def is_negative(i):
        z = (seed + i + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) >> 63

    return [-1.0 if is_negative(i) else 1.0 for i in range(head_dim)]


def turned_back(gradient, seed):
    """The gradient of what FA3_QUANTIZE_INCOHERENT has made a tensor of, as that of the tensor: the same orthogonal
    matrix from the other side. Its elements, times sqrt(n), are 1 and -1, so that each product is rounded once."""
    head_dim = gradient.shape[-1]
    n = head_dim & -head_dim
    hadamard = torch.ones(1, 1, dtype=torch.float32, device=gradient.device)
    while hadamard.shape[0] < n:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    signs = torch.tensor(_signs(seed, head_dim), dtype=torch.float32, device=gradient.device)
    matrix = torch.block_diag(*[hadamard] * (head_dim // n)) * signs
    rows = gradient.reshape(-1, head_dim)
    turned = torch.addmm(rows.new_zeros(()), rows, matrix.to(rows.dtype), beta=0, alpha=n**-0.5)
    return turned.reshape(gradient.shape)


class Fp8(torch.autograd.Function):
    """Attention of what `quantize` makes of q, k and v, whose gradients are taken for those of q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, mask, softmax_scale, flags, scales, seed):
        mixed = (0, 0) if seed is None else (_abi.QUANTIZE_INCOHERENT, seed)
        k8 = quantize(k, scales, False, True, *mixed, None, None, None, 0.0)
        q8 = quantize(q, scales, False, False, *mixed, None, None, k8.mean, softmax_scale)
        v8 = quantize(v, scales, True, True, 0, 0, None, None, None, 0.0)
        scales8 = (q8.scale, k8.scale, v8.scale)
        o, lse = forward_op(q8.y, k8.y, v8.y, mask, softmax_scale, flags & ~_backward.FLAGS, q.dtype, None, *scales8,
                            None, v8.mean, q8.lse_offset)  # fmt: skip
        ctx.save_for_backward(q8.y, k8.y, v8.y, o, lse, *scales8, v8.mean, q8.lse_offset, k8.mean)
        ctx.how = mask, softmax_scale, flags & _backward.FLAGS, seed
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        if dout is None and dlse is None:
            return (None,) * 8
        q, k, v, o, lse, *scales, k_mean = ctx.saved_tensors
        *how, seed = ctx.how
        dout = torch.zeros_like(o) if dout is None else dout
        dq, dk, dv = backward_op(dout, q, k, v, o, lse, dlse, *how, None, *scales)
        if dlse is not None:  # lse has softmax_scale * q . k_mean in it, which the library takes for a constant
            scale = how[1] or q.shape[-1] ** -0.5
            means = k_mean.repeat_interleave(q.shape[2] // k.shape[2], 1)
            dq = (dq + scale * dlse.transpose(1, 2)[..., None] * means[:, None]).to(dq.dtype)
        if seed is not None:
            dq, dk = turned_back(dq, seed), turned_back(dk, seed)
        return dq, dk, dv, *(None,) * 5
