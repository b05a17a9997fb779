"""Calls of libfa3.so that are prepared once and timed often, for torch tensors whose outputs are given. Everything else
about the library from Python is tools/python/fa3."""

import ctypes
import math
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/python"))
import fa3  # noqa: E402

TORCH_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "e4m3": "float8_e4m3fn"}  # fa3-bench's names


def newest_build(path=None):
    """`path`, or what FA3_LIBRARY names, or the libfa3.so that was built last in this repository, if any was."""
    if path or os.environ.get("FA3_LIBRARY"):
        return fa3.find_library(path)
    built = sorted(ROOT.glob("build*/src/libfa3.so"), key=lambda file: file.stat().st_mtime)
    return str(built[-1]) if built else fa3.find_library()


def described(tensors):
    return {name: fa3.describe(x, name) for name, x in tensors.items()}


class Library(fa3.Library):
    """Each `prepare...` returns a function that enqueues its call on torch's current stream and returns what it
    writes; the parameters are its attribute `params`. Preparing once keeps Python's share out of timed loops. mask: of
    fa3.MASKS."""

    def __init__(self, path=None):
        super().__init__(newest_build(path))
        self.workspaces = {}

    def preload_for_torch(self):
        """Loads the kernels into torch's context, which becomes current."""
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.preload()

    def workspace(self, device, stream, needed):
        """Calls that may run at the same time need a workspace each: one a stream, as large as the largest needs."""
        import torch

        workspace = self.workspaces.get((device, stream))
        if workspace is None or workspace.numel() < needed:
            workspace = torch.empty(needed, dtype=torch.uint8, device=device)
            self.workspaces[device, stream] = workspace
        return workspace

    def prepare_call(self, params, device, result, keep_alive):
        import torch

        stream = torch.cuda.current_stream(device).cuda_stream
        needed = self.workspace_size(params, torch.cuda.get_device_properties(device).multi_processor_count)
        workspace = self.workspace(device, stream, needed)
        function, reference = getattr(self.lib, f"fa3_{params.call}"), ctypes.byref(params)
        address, size = workspace.data_ptr(), workspace.numel()

        def call(keep_alive=(params, workspace, keep_alive)):
            if function(reference, address, size, stream) != 0:
                self.enqueue(params, address, size, stream)  # is refused again, as an exception
            return result

        call.params = params
        return call

    def prepare(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, kernel=None, flags=0, **scales):
        """The forward pass, in any strides. scales: those of fa3_forward_params; v may be tiles. Returns o."""
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, **scales}
        how = {"mask": fa3.MASKS[mask], "softmax_scale": softmax_scale, "flags": flags}
        params = fa3.ForwardParams(kernel=kernel and kernel.encode(), **how, **described(tensors))
        return self.prepare_call(params, q.device, o, tensors)

    def prepare_backward(self, q, k, v, o, lse, dout, dq, dk, dv, mask="none", softmax_scale=0.0, flags=0):
        """The backward pass. Returns dq, dk and dv."""
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "dout": dout, "dq": dq, "dk": dk, "dv": dv}
        how = {"mask": fa3.MASKS[mask], "softmax_scale": softmax_scale, "flags": flags}
        params = fa3.BackwardParams(**how, **described(tensors))
        return self.prepare_call(params, q.device, [dq, dk, dv], tensors)

    def prepare_quantize(self, x, y, scale, flags=0, seed=0, softmax_scale=0.0, **optional):
        """The quantization of x; y: as x, or tiles. optional: the other tensors of fa3_quantize_params. Returns
        (y, scale)."""
        tensors = {"x": x, "y": y, "scale": scale, **optional}
        params = fa3.QuantizeParams(flags=flags, seed=seed, softmax_scale=softmax_scale, **described(tensors))
        return self.prepare_call(params, x.device, (y, scale), tensors)


def forward_outputs(q, head_dim_v):
    """Tensors for the forward pass of q to write: O, in bf16 if q is e4m3, and NaN until it is written; and LSE."""
    import torch

    batch, seqlen, heads, _ = q.shape
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = torch.full((batch, seqlen, heads, head_dim_v), math.nan, dtype=dtype, device=q.device)
    return out, torch.empty(batch, heads, seqlen, dtype=torch.float32, device=q.device)


def quantize_outputs(x, scales="block", tiles=False):
    """Tensors for the quantization of x to write: y and scale."""
    import torch

    batch, seqlen, heads, _ = x.shape
    dims = fa3.tile_dims(*x.shape) if tiles else x.shape
    y = torch.empty(dims, dtype=torch.float8_e4m3fn, device=x.device)
    return y, torch.empty(fa3.scale_dims(scales, batch, heads, seqlen), dtype=torch.float32, device=x.device)


def tiles_of(v):
    """V of (batch, seqlen, heads, head_dim) in e4m3 as tiles, packed; keys beyond its length are 0. See fa3.h: row
    16 a + 8 c + r of a tile is column 16 a + 2 r + c, byte 4 q + 2 b + e of it key 8 b + 2 q + e."""
    import torch

    batch, seqlen, heads, head_dim = v.shape
    dims = fa3.tile_dims(batch, seqlen, heads, head_dim)
    padded = torch.zeros(batch, dims[2] * 16, heads, head_dim, dtype=torch.uint8, device=v.device)
    padded[:, :seqlen] = v.view(torch.uint8)
    parts = padded.view(batch, dims[2], 2, 4, 2, heads, head_dim // 16, 8, 2)  # batch, g, b, q, e, head, a, r, c
    return parts.permute(0, 5, 1, 6, 8, 7, 3, 2, 4).reshape(dims).view(torch.float8_e4m3fn)


def fp8_attention(q, k, v, causal=False, softmax_scale=None, scales="block", incoherent=True, mean=True,
                  two_level=False, seed=1):  # fmt: skip
    """Attention in FP8 from bf16 or fp16 tensors, on a GPU or by the reference: o, of q's dtype. scales: tensor, head
    or block. incoherent: the Hadamard transform of Q and K. mean: V without its mean over the sequence."""
    q8, k8 = (fa3.quantize(x, scales=scales, incoherent=incoherent, seed=seed) for x in (q, k))
    v8 = fa3.quantize(v, scales=scales, tiles=True, mean=mean)
    named = {"q_scale": q8.scale, "k_scale": k8.scale, "v_scale": v8.scale, "v_mean": v8.mean}
    how = {"causal": causal, "softmax_scale": softmax_scale, "two_level": two_level, "out_dtype": q.dtype}
    return fa3.forward(q8.y, k8.y, v8.y, **how, **named)


class Fp8Attention:
    """The same (scales for blocks, incoherent processing, V without its mean) as four calls of the library, prepared
    once for these tensors: it may be called any number of times."""

    def __init__(self, library, q, k, v, o, lse=None, mask="none", seed=1):
        import torch

        self.o = o
        (yq, sq), (yk, sk) = (quantize_outputs(x) for x in (q, k))
        yv, sv = quantize_outputs(v, tiles=True)
        v_mean = torch.empty(v.shape[0], v.shape[2], v.shape[3], dtype=torch.float32, device=v.device)
        self.calls = [
            library.prepare_quantize(q, yq, sq, fa3.QUANTIZE_INCOHERENT, seed),
            library.prepare_quantize(k, yk, sk, fa3.QUANTIZE_INCOHERENT, seed),
            library.prepare_quantize(v, yv, sv, mean=v_mean),
            library.prepare(yq, yk, yv, o, lse, mask, q_scale=sq, k_scale=sk, v_scale=sv, v_mean=v_mean),
        ]
        self.params = self.calls[-1].params

    def __call__(self):
        for call in self.calls:
            call()
        return self.o
