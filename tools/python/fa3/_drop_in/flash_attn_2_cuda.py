"""flash_attn_2_cuda, the extension below flash_attn, by its names alone: programs that look for it find it, and call
flash_attn's functions."""

from __future__ import annotations

from .refusals import add_refusals

add_refusals(globals(), "fwd varlen_fwd bwd varlen_bwd fwd_kvcache")
