"""FlashAttention-3 for NVIDIA Hopper: libfa3.so from Python, through ctypes alone.

    import torch, fa3
    o = fa3.attention(q, k, v, causal=True)            # (batch, seqlen, heads, head_dim), differentiable
    o = fa3.forward(q, k_cache, v_cache, causal=True, page_table=page_table, seqused_k=lengths)  # and packed sequences

Tensors of torch on a CUDA device are worked on by kernels on torch's current stream, tensors on the CPU and NumPy
arrays by the reference: in float64, slow. fa3.h is the manual. What the library refuses is InvalidArgument, a
ValueError, or Unsupported, a NotImplementedError, by the argument's name; other failures are Fa3Error. Call `preload`
before a CUDA graph is captured. `install` puts functions in the places of those of FlashAttention-2, -3, -4, vLLM or
FlashMLA; fa3.distributed spreads tokens over GPUs. `load` or FA3_LIBRARY names a library."""

from __future__ import annotations

import sys

from ._abi import (
    APPEND_ROTARY_INTERLEAVED,
    DTYPES,
    FLAG_ACCUMULATE,
    FLAG_BATCH_INVARIANT,
    FLAG_CENTERED_K,
    FLAG_DETERMINISTIC,
    FLAG_TWO_LEVEL,
    MASKS,
    QUANTIZE_INCOHERENT,
    QUANTIZE_ROTARY_INTERLEAVED,
    find_library,
    library,
    load,
    make_tensor,
)
from ._abi import AppendParams as AppendParams
from ._abi import BackwardParams as BackwardParams
from ._abi import CombineParams as CombineParams
from ._abi import Fa3Error as Fa3Error
from ._abi import ForwardParams as ForwardParams
from ._abi import InvalidArgument as InvalidArgument
from ._abi import Library as Library
from ._abi import QuantizeParams as QuantizeParams
from ._abi import Tensor as Tensor
from ._abi import Unsupported as Unsupported
from ._arguments import Packed as Packed
from ._arguments import Quantized as Quantized
from ._arrays import scale_dims, tile_dims
from ._calls import (
    append,
    attention,
    attention_fp8,
    backward,
    combine,
    describe,
    forward,
    forward_schedule,
    kernel_info,
    kernels,
    preload,
    quantize,
    version,
)
from ._documents import documents
from ._drop_in.install import install, register_diffusers, register_sdpa, register_transformers

# What help(fa3) shows. It would show classes before the functions, with all that they inherit: those have their own
# help, as in help(fa3.Library).
__all__ = [
    "attention", "attention_fp8", "forward", "forward_schedule", "backward", "quantize", "append", "combine", "preload",
    "documents", "install", "register_sdpa", "register_transformers", "register_diffusers", "kernel_info", "kernels",
    "version", "describe", "make_tensor", "scale_dims", "tile_dims", "find_library", "library", "load", "DTYPES",
    "MASKS", "FLAG_DETERMINISTIC", "FLAG_TWO_LEVEL", "FLAG_BATCH_INVARIANT", "FLAG_CENTERED_K", "FLAG_ACCUMULATE",
    "QUANTIZE_INCOHERENT", "QUANTIZE_ROTARY_INTERLEAVED", "APPEND_ROTARY_INTERLEAVED",
]  # fmt: skip

if "torch" in sys.modules:
    from . import _torch as _torch  # registers the custom ops
