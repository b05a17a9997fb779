"""The README's Python example, as it stands, computes attention and its gradients, on the CPU. Arguments: the library,
README.md. Skipped without torch."""

import os
import pathlib
import re
import sys

from support import attention, fa3, need

need("torch")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch  # noqa: E402

fa3.load(sys.argv[1])
(example,) = re.findall(r"^```python\n(.*?)^```", pathlib.Path(sys.argv[2]).read_text(), re.M | re.S)
names = {}
exec(example, names)
leaves = [names[name] for name in ("q", "k", "v")]
doubles = [x.detach().double().requires_grad_() for x in leaves]
o = attention(torch, *doubles, True)[0]
for x, y in zip((names["o"], *(x.grad for x in leaves)), (o, *torch.autograd.grad(o.sum(), doubles))):
    assert x.dtype == torch.bfloat16 and (x.double() - y).abs().max() < 2.0**-6 * y.abs().max(), example
print(f"{example.count(chr(10))} lines, run on {names['device']}")
