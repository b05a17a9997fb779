"""FlashAttention-3 for NVIDIA Hopper: libfa3.so from Python, through ctypes alone.

    import torch, fa3
    o = fa3.attention(q, k, v, causal=True)            # (batch, seqlen, heads, head_dim), differentiable
    o = fa3.forward(q, k_cache, v_cache, causal=True, page_table=page_table, seqused_k=lengths)  # and packed sequences

Tensors of torch on a CUDA device are worked on by kernels on torch's current stream, tensors on the CPU and NumPy
arrays by the reference: in float64, slow. What the library refuses is InvalidArgument, a ValueError, or Unsupported, a
NotImplementedError, by the argument's name; other failures are Fa3Error. Call `preload` before a CUDA graph is
captured. `install` puts fa3 in the places of FlashAttention-2, -3, -4, vLLM's attention or FlashMLA; fa3.distributed
spreads tokens over GPUs. FA3_LOG=1 and FA3_CHECK=1 in the environment show calls and check them; FA3_LIBRARY names a
library. fa3.h is the manual."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

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
from ._calls.arguments import Packed as Packed
from ._calls.arguments import Quantized as Quantized
from ._arrays import scale_dims, tile_dims
from ._calls.functions import (
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
from ._calls.documents import documents
from ._drop_in.install import (
    install,
    install_asked,
    register_diffusers,
    register_sdpa,
    register_transformers,
    uninstall,
)
from ._machine import is_available

__version__ = "0.2.0"

# What help(fa3) shows. It would show classes before the functions, with all that they inherit: those have their own
# help, as in help(fa3.Library).
__all__ = [
    "attention", "attention_fp8", "forward", "forward_schedule", "backward", "quantize", "append", "combine", "preload",
    "documents", "install", "uninstall", "register_sdpa", "register_transformers", "register_diffusers",
    "is_available", "kernel_info", "kernels", "version", "describe", "make_tensor", "scale_dims", "tile_dims", "find_library", "library", "load",
    "DTYPES", "MASKS", "FLAG_DETERMINISTIC", "FLAG_TWO_LEVEL", "FLAG_BATCH_INVARIANT", "FLAG_CENTERED_K",
    "FLAG_ACCUMULATE", "QUANTIZE_INCOHERENT", "QUANTIZE_ROTARY_INTERLEAVED", "APPEND_ROTARY_INTERLEAVED",
]  # fmt: skip

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import flash_attn as flash_attn
    from . import flash_attn_cute as flash_attn_cute
    from . import flash_attn_interface as flash_attn_interface
    from . import flash_mla as flash_mla
    from . import vllm_flash_attn as vllm_flash_attn
else:

    def __getattr__(name):
        """Modules that need torch, when they are asked for: help(fa3.distributed) needs no import."""
        if name in ("distributed", "flash_mla", "vllm_flash_attn") or name.startswith("flash_attn"):
            try:
                return importlib.import_module(f"fa3.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"fa3.{name}":
                    raise
        raise AttributeError(f"module fa3 has no attribute {name}")


if "torch" in sys.modules:
    from ._frameworks import torch as _torch  # registers the custom ops
install_asked()
