# What type checkers know of fa3: torch tensors give torch tensors, and NumPy arrays NumPy arrays.

from types import ModuleType, SimpleNamespace
from typing import Any, Generic, Iterator, Literal, NamedTuple, Optional, Tuple, TypedDict, TypeVar, Union, overload

import numpy
import torch
from typing_extensions import Unpack

from ._abi import APPEND_ROTARY_INTERLEAVED as APPEND_ROTARY_INTERLEAVED
from ._abi import DTYPES as DTYPES
from ._abi import FLAG_ACCUMULATE as FLAG_ACCUMULATE
from ._abi import FLAG_BATCH_INVARIANT as FLAG_BATCH_INVARIANT
from ._abi import FLAG_CENTERED_K as FLAG_CENTERED_K
from ._abi import FLAG_DETERMINISTIC as FLAG_DETERMINISTIC
from ._abi import FLAG_TWO_LEVEL as FLAG_TWO_LEVEL
from ._abi import MASKS as MASKS
from ._abi import QUANTIZE_INCOHERENT as QUANTIZE_INCOHERENT
from ._abi import QUANTIZE_ROTARY_INTERLEAVED as QUANTIZE_ROTARY_INTERLEAVED
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
from ._abi import find_library as find_library
from ._abi import library as library
from ._abi import load as load
from ._abi import make_tensor as make_tensor

Array = TypeVar("Array", torch.Tensor, numpy.ndarray[Any, Any])
Causal = Union[bool, Literal["bottom_right", "top_left"]]

class Packed(TypedDict, Generic[Array]):
    cu_seqlens_q: Array
    cu_seqlens_k: Array
    max_seqlen_q: int
    max_seqlen_k: int

class _Served(TypedDict, Generic[Array], total=False):
    causal: Causal
    softmax_scale: Optional[float]
    window: Optional[Tuple[int, int]]
    chunk: Optional[int]
    sinks: Optional[Array]
    softcap: Optional[float]
    alibi_slopes: Optional[Array]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    seqused_q: Optional[Array]
    seqused_k: Optional[Array]
    leftpad_k: Optional[Array]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    schedule: Optional[Array]
    batch_invariant: bool
    qv: Optional[Array]

class _Attention(_Served[Array], Generic[Array], total=False):
    deterministic: bool
    centered_k: bool

class _Planned(_Served[Array], Generic[Array], total=False):
    q_scale: Optional[Array]
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    o_scale: Optional[Array]
    v_mean: Optional[Array]
    lse_offset: Optional[Array]
    two_level: bool
    out_dtype: Any
    kernel: Optional[str]
    out: Optional[Array]

class _Backward(TypedDict, Generic[Array], total=False):
    dlse: Optional[Array]
    causal: Causal
    softmax_scale: Optional[float]
    deterministic: bool
    centered_k: bool
    kernel: Optional[str]
    window: Optional[Tuple[int, int]]
    chunk: Optional[int]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    seqused_q: Optional[Array]
    seqused_k: Optional[Array]
    softcap: Optional[float]
    alibi_slopes: Optional[Array]
    q_scale: Optional[Array]
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    v_mean: Optional[Array]
    lse_offset: Optional[Array]
    out: Optional[Tuple[Array, Array, Array]]
    accumulate: bool

class _AttentionFp8(TypedDict, total=False):
    causal: Causal
    softmax_scale: Optional[float]
    scales: Literal["block", "head", "tensor"]
    seed: Optional[int]
    deterministic: bool

class Quantized(NamedTuple, Generic[Array]):
    y: Array
    scale: Array
    mean: Optional[Array]
    lse_offset: Optional[Array]

@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
              **arguments: Unpack[_Attention[Array]]) -> Array: ...
@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
              **arguments: Unpack[_Attention[Array]]) -> Tuple[Array, Array]: ...
@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: bool,
              **arguments: Unpack[_Attention[Array]]) -> Union[Array, Tuple[Array, Array]]: ...
@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
                  **arguments: Unpack[_AttentionFp8]) -> Array: ...
@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
                  **arguments: Unpack[_AttentionFp8]) -> Tuple[Array, Array]: ...
@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: bool,
                  **arguments: Unpack[_AttentionFp8]) -> Union[Array, Tuple[Array, Array]]: ...
@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
            **arguments: Unpack[_Planned[Array]]) -> Array: ...
@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
            **arguments: Unpack[_Planned[Array]]) -> Tuple[Array, Array]: ...
@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: bool,
            **arguments: Unpack[_Planned[Array]]) -> Union[Array, Tuple[Array, Array]]: ...
def forward_schedule(q: Array, k: Array, v: Array, **arguments: Unpack[_Planned[Array]]) -> Array: ...
def kernel_info(q: Array, k: Array, v: Array, *, multiprocessors: int = ...,
                **arguments: Unpack[_Planned[Array]]) -> SimpleNamespace: ...
@overload
def backward(dout: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *, sinks: None = ...,
             **arguments: Unpack[_Backward[Array]]) -> Tuple[Array, Array, Array]: ...
@overload
def backward(dout: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *, sinks: Array,
             **arguments: Unpack[_Backward[Array]]) -> Tuple[Array, Array, Array, Array]: ...
def quantize(x: Array, *, scales: Literal["block", "head", "tensor"] = ..., tiles: bool = ..., mean: bool = ...,
             incoherent: bool = ..., seed: int = ..., rotary_cos: Optional[Array] = ...,
             rotary_sin: Optional[Array] = ..., rotary_interleaved: bool = ..., k_mean: Optional[Array] = ...,
             softmax_scale: Optional[float] = ...) -> Quantized[Array]: ...

class _Append(TypedDict, Generic[Array], total=False):
    cache_seqlens: Optional[Array]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    slot_mapping: Optional[Array]
    cu_seqlens_new: Optional[Array]
    seqused_new: Optional[Array]
    q_out: Optional[Array]
    rotary_cos: Optional[Array]
    rotary_sin: Optional[Array]
    rotary_positions: Optional[Array]
    rotary_interleaved: bool
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    q_scale: Optional[Array]

@overload
def append(k: Optional[Array], v: Optional[Array], k_cache: Optional[Array], v_cache: Optional[Array], *, q: Array,
           **arguments: Unpack[_Append[Array]]) -> Array: ...
@overload
def append(k: Optional[Array], v: Optional[Array], k_cache: Optional[Array], v_cache: Optional[Array], *,
           q: None = ..., **arguments: Unpack[_Append[Array]]) -> None: ...
@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: Literal[True] = ...,
            out: Optional[Array] = ...) -> Tuple[Array, Array]: ...
@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: Literal[False],
            out: Optional[Array] = ...) -> Array: ...
@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: bool,
            out: Optional[Array] = ...) -> Union[Array, Tuple[Array, Array]]: ...
def documents(ids: Array) -> Packed[Array]: ...
def describe(x: Optional[Array], name: str = ...) -> Tensor: ...
def scale_dims(which: Literal["tensor", "head", "block"], batch: int, heads: int,
               seqlen: int) -> Tuple[int, int, int]: ...
def tile_dims(batch: int, seqlen: int, heads: int, head_dim: int) -> Tuple[int, int, int, int, int]: ...
def kernels() -> Iterator[SimpleNamespace]: ...
def version() -> str: ...
__version__: str
def is_available() -> bool: ...
def preload(device: Any = ...) -> None: ...
def install(name: Literal["flash_attn_interface", "flash_attn", "flash_attn.cute", "vllm.vllm_flash_attn",
                          "flash_mla"], *, replace: bool = ...) -> ModuleType: ...
def register_sdpa() -> None: ...
def register_transformers(name: str = ...) -> None: ...
def register_diffusers(name: str = ...) -> None: ...
