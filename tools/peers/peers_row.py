"""The measurements of one point in peers.py: times, the speeds and ratios that they make, and whether outputs agree."""

import collections
import math
import statistics

# Relative RMS difference of two outputs. Each output of e4m3 is 3% away from the exact one, as P is rounded to it; that
# of `quantize` 8% from the first library's, as each rounds q, k and v in its own way.
TOLERANCE = {"bf16": 0.01, "fp16": 0.01, "e4m3": 0.1}


def difference(ours, theirs, scale=1.0):
    """Relative RMS difference, in float32 and in parts, so that long sequences fit. scale: theirs is to be times it."""
    squares = sizes = 0.0
    for a, b in zip(ours, theirs):
        a, b = a.float(), b.float()
        if scale != 1.0:
            b = b * scale
        squares += (a - b).square().sum().item()
        sizes += b.square().sum().item()
    return math.sqrt(squares / sizes) if sizes > 0 else (0.0 if squares == 0 else math.inf)


class Row:
    """The measurements of one point. first: the name of the library that all others are compared with."""

    def __init__(self, point, first):
        self.point, self.first, self.kernel = point, first, ""
        self.passes, self.minima, self.times = collections.defaultdict(list), {}, {}
        self.differences, self.notes, self.host_bound = {}, {}, {}

    def add_pass(self, name, times):
        self.passes[name].append(statistics.median(times))
        self.minima[name] = min(*times, self.minima.get(name, math.inf))
        self.times[name] = times

    def ms(self, name):
        return statistics.median(self.passes[name]) if self.passes[name] else None

    def spread(self, name):
        """As fa3-bench's: of one pass's runs, or of the medians of several passes."""
        times, medians = self.times[name], self.passes[name]
        if len(medians) > 1:
            return (max(medians) - min(medians)) / self.ms(name)
        tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
        return (tenths[-1] - tenths[0]) / self.ms(name)

    def tflops(self, name):
        return self.point.flop / self.ms(name) * 1e-9 if self.ms(name) else None

    def ratio(self, name):
        """Its speed over the first library's."""
        return self.ms(self.first) / self.ms(name) if self.ms(self.first) and self.ms(name) else None

    def agrees(self, name, options):
        """With the first library; None if it could not be compared."""
        tolerance = options.tolerance or TOLERANCE[self.point.dtype]
        return self.differences[name] <= tolerance if name in self.differences else None

    def checked(self, options):
        """Whether all agree; None if no peer could be compared."""
        return all(self.agrees(name, options) for name in self.differences) if self.differences else None
