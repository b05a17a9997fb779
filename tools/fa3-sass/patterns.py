"""Patterns for the names of rows: few and short ones that match these rows of the table, and no others."""
import fnmatch
import functools
import itertools
import re


class Patterns:
    def __init__(self, names):
        self.names = names
        self.families = sorted({name.split("_")[1] for name in names})
        # What one has more than another: planned, packed, short.
        self.words = sorted({family[len(other):] for family in self.families for other in self.families
                             if family.startswith(other) and family != other})
        self.matched = functools.lru_cache(None)(self.matched)
        self.candidates = functools.lru_cache(None)(self.candidates)
        self.of = functools.lru_cache(None)(self.of)

    def matched(self, pattern):
        return frozenset(fnmatch.filter(self.names, pattern))

    def heads(self, family):
        """A family, and what it has in common with others: fwdplanned*, *packed, fwdplanned*packed."""
        begins = [""] + [other for other in self.families if family.startswith(other)]
        ends = [""] + [end for end in self.words if family.endswith(end)]
        return [family] + [f"{begin}*{end}" for begin in begins for end in ends
                           if (begin or end) and len(begin) + len(end) <= len(family)]

    def candidates(self, name):
        _, family, *fields = name.split("_")
        kept = itertools.product((False, True), repeat=len(fields))
        texts = ["_".join(field if keep else "*" for field, keep in zip(fields, keeps)) for keeps in kept]
        return sorted({re.sub(r"\*?(_\*)+", lambda run: "*" if run[0][0] == "*" else "_*", f"fa3_{head}_{text}")
                       for head in self.heads(family) for text in texts} | {name})

    def of(self, rows):
        """For a frozenset of names. Each pattern is the one that matches the most of what is left; of several the one
        that cuts no word, and the shortest; but a row alone has its name."""
        left, found = set(rows), []
        possible = {pattern for name in sorted(rows) for pattern in self.candidates(name)}
        possible = {pattern: self.matched(pattern) for pattern in possible if self.matched(pattern) <= rows}

        def merit(pattern):
            matched = len(possible[pattern] & left)
            return -matched, matched == 1 and "*" in pattern, len(re.findall(r"[^_]\*", pattern)), len(pattern), pattern

        while left:
            found.append(min(possible, key=merit))
            left -= possible[found[-1]]
        return tuple(found)
