"""prepared.py's V as tiles, from a torch tensor in any strides, element by element as fa3.h says. Skipped without
torch."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/python"))
from support import need  # noqa: E402

need("torch")
import prepared  # noqa: E402
import torch  # noqa: E402
from prepared import fa3  # noqa: E402

batch, seqlen, heads, d = 2, 37, 3, 48
generator = torch.Generator().manual_seed(1)
v = torch.randn(heads, batch, seqlen, d, generator=generator).to(torch.float8_e4m3fn).permute(1, 2, 0, 3)
tiles = prepared.tiles_of(v)
assert tuple(tiles.shape) == fa3.tile_dims(*v.shape) == (batch, heads, 3, d, 16) and tiles.is_contiguous()
v, tiles = v.float(), tiles.float()
for key in range(48):
    byte = key % 8 // 2 * 4 + key % 16 // 8 * 2 + key % 2
    for column in range(d):
        row = column // 16 * 16 + column % 2 * 8 + column % 16 // 2
        expected = v[:, key, :, column] if key < seqlen else torch.zeros(batch, heads)
        assert torch.equal(tiles[:, :, key // 16, row, byte], expected), (key, column)
