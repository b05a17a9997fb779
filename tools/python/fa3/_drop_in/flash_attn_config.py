"""flash_attn_3.flash_attn_config: how an official build was configured, which programs read. fa3 leaves nothing out."""

from __future__ import annotations

from typing import Any, Dict

CONFIG: Dict[str, Any] = {"build_flags": {}}
_PARTS = "BACKWARD SPLIT PAGEDKV APPENDKV LOCAL SOFTCAP PACKGQA FP16 FP8 VARLEN CLUSTER SM8x HDIMDIFF64 HDIMDIFF192"
for _name in (*_PARTS.split(), *(f"HDIM{columns}" for columns in (64, 96, 128, 192, 256))):
    CONFIG["build_flags"][f"FLASHATTENTION_DISABLE_{_name}"] = False


def show() -> Dict[str, Any]:
    return CONFIG
