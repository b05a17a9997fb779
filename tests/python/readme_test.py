"""The README's Python examples, as they stand, compute attention and its gradients, and a server's calls, on the CPU.
Arguments: the library, README.md. Skipped without torch."""

import os
import pathlib
import re
import sys

from support import attention, fa3, need

need("torch")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch  # noqa: E402

fa3.load(sys.argv[1])
examples = re.findall(r"^```python\n(.*?)^```", pathlib.Path(sys.argv[2]).read_text(), re.M | re.S)
example, serving = examples
names = {}
exec(example, names)
leaves = [names[name] for name in ("q", "k", "v")]
doubles = [x.detach().double().requires_grad_() for x in leaves]
o = attention(torch, *doubles, True)[0]
for x, y in zip((names["o"], *(x.grad for x in leaves)), (o, *torch.autograd.grad(o.sum(), doubles))):
    assert x.dtype == torch.bfloat16 and (x.double() - y).abs().max() < 2.0**-6 * y.abs().max(), example

exec(serving, names)
for b, (start, end) in enumerate(((0, 100), (100, 137))):
    prompt = [names[name][None, start:end].double() for name in ("q", "k", "v", "o")]
    step = [names[f"{name}_new"][b : b + 1].double() for name in ("q", "k", "v", "o")]
    step[1:3] = (torch.cat(pair, 1) for pair in zip(prompt[1:3], step[1:3]))
    for q, k, v, o in (prompt, step):
        expected = attention(torch, q, k, v, True)[0]
        assert o.shape == expected.shape and (o - expected).abs().max() < 2.0**-7 * expected.abs().max(), serving
print(f"{sum(x.count(chr(10)) for x in examples)} lines, run on {names['device']}")
