#!/usr/bin/env python3
"""Machine code with a fault in each copy, and how many of them fa3-sass names: by a figure that is another one
(tools/fa3-sass/changes.py), by a rule of the contract, and by the preset, which knows nothing of the kernel.

usage: mutated.py FA3_SASS NVDISASM FOLDER [--verbose] [--report] [KIND ...]

FOLDER holds cubins of rows of the table. Each fault is a change of a listing's text, which is what a fault in the
source or in its compilation would leave there; nothing is compiled. That the kernel is another one the lock of the
kernels says of each of them. A fault counts as named by a figure if one that counts more than instructions has another
value, and by a rule if the kernel keeps that rule without the fault. Figures must name nine in ten of all faults, and
more than half of each kind; --report only counts. With KINDs only those.
"""
import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../tools/fa3-sass"))
import changes as changed  # noqa: E402

ALG1 = "fa3_alg1_bf16_d128_causal_128x128"
FWD = "fa3_fwd_bf16_d128_full_192x64"
PLANNED = "fa3_fwdplanned_bf16_d64_window_256x64"
E4M3 = "fa3_fwd_e4m3_d128_full_192x96"
TWO_LEVEL = "fa3_fwdtwolevel_e4m3_d128_full_128x64"
SHARED = "fa3_fwdsharedkeys_bf16_d128_full_64x64"
BWD = "fa3_bwd_bf16_d64_full_128x128"
KEYS, QUERIES = "fa3_bwd_keys_bf16_d256_full_64x64", "fa3_bwd_queries_bf16_d256_full_128x64"
FINISH, COMBINE = "fa3_pass_bwd_finish_d128", "fa3_pass_combine"

NOP = "NOP"
SITES = 3  # places of a kind in a kernel, chosen at random


class Code:
    """A listing whose instructions can be changed one by one."""

    STEP = re.compile(r"(\s*/\*[0-9a-f]{4,}\*/\s+)(.*?)\s*;")

    def __init__(self, text):
        self.lines = text.splitlines()
        self.steps = [n for n, line in enumerate(self.lines) if self.STEP.match(line)]

    def step(self, n):
        return self.STEP.match(self.lines[self.steps[n]])[2]

    def find(self, pattern, first=0, last=None):
        last = len(self.steps) if last is None else last
        return [n for n in range(first, last) if re.search(pattern, self.step(n))]

    def changed(self, changes):
        """The text with other instructions in some places."""
        lines = list(self.lines)
        for n, step in changes.items():
            lines[self.steps[n]] = self.STEP.match(lines[self.steps[n]])[1] + step + " ;"
        return "\n".join(lines) + "\n"

    def main_loop(self):
        """From the first step of the loop with most WGMMAs to its last, as a guess by the branch back."""
        labels, best = {}, (0, 0, 0)
        for n, line in enumerate(self.lines):
            if match := re.match(r"(\.L_x_\d+):", line):
                labels[match[1]] = n
        for n in self.find(r"BRA `\(\.L_x_\d+\)"):
            target = labels[re.search(r"\.L_x_\d+", self.step(n))[0]]
            begin = sum(step < target for step in self.steps)
            wgmmas = len(self.find(r"^[HQ]GMMA", begin, n))
            if begin < n and wgmmas and (not best[0] or n - begin < best[2] - best[1]):
                best = (wgmmas, begin, n)
        return best[1:]


def each(code, pattern, made, first=0, last=None):
    """One fault for each place: the step there, substituted."""
    for n in code.find(pattern, first, last):
        step = made(code.step(n)) if callable(made) else re.sub(pattern, made, code.step(n))
        yield {n: step}


def all_of(code, pattern, made, first=0, last=None):
    """One fault: all places at once."""
    changes = {}
    for change in each(code, pattern, made, first, last):
        changes.update(change)
    if changes:
        yield changes


def in_loop(code, pattern, made, share=1):
    """Every `share`-th place of the main loop at once."""
    places = code.find(pattern, *code.main_loop())[::share]
    if places:
        yield {n: made if made == NOP else re.sub(pattern, made, code.step(n)) for n in places}


def same_waits(code, n):
    """A wait and its copies that spin."""
    operands = re.sub(r"^.*TRYWAIT U?P\d, ", "", code.step(n))
    return [m for m in code.find("PHASECHK") if code.step(m).endswith(operands)]


def waits(code, made):
    """One fault for each wait for an mbarrier, with its copies."""
    seen = set()
    for n in code.find("PHASECHK"):
        if code.step(n) not in seen:
            seen.add(code.step(n))
            changes = {m: made(code.step(m)) for m in same_waits(code, n)}
            if changes[n] != code.step(n):
                yield changes


def other_barrier(code):
    """The constant parts of addresses of mbarriers, each moved to the next one in use."""
    places = sorted({int(place, 16) for n in code.find("PHASECHK")
                     for place in re.findall(r"\+(0x[0-9a-f]+)\]", code.step(n))})

    def moved(step):
        place = re.search(r"\+(0x[0-9a-f]+)\]", step)
        if not place or int(place[1], 16) not in places:
            return step
        other = places[(places.index(int(place[1], 16)) + 1) % len(places)]
        return step.replace(place[1], hex(other))
    return places, moved


def tma_elsewhere(code):
    """The register of a load's mbarrier is made of its constant: another one."""
    places, _ = other_barrier(code)
    for place in sorted({int(found, 16) for n in code.find(r"SYNCS\.ARRIVE\.TRANS64 ")
                         for found in re.findall(r"\+(0x[0-9a-f]+)\]", code.step(n))}):
        other_places = [other for other in places if other != place]
        yield from all_of(code, rf"^U?(IADD3|VIADD) (\w+), (\w+), {hex(place)}\b",
                          lambda step, old=hex(place), new=hex(other_places[0]): step.replace(old, new))


def other_map(code):
    """The address of a tensor map, for what loads or stores: one that is only fetched ahead costs no more than time."""
    for n in code.find(r"^UIADD3 UR\d+, UP\d, UR\d+, 0x(30|b0|130|1b0)\b"):
        register = re.match(r"UIADD3 (UR\d+)", code.step(n))[1]
        uses = code.find(rf"\[{register}\]", n + 1, min(n + 40, len(code.steps)))
        if not uses or not code.step(uses[0]).startswith("UTMACCTL"):
            yield {n: re.sub(r", 0x(30|b0|130|1b0)\b", ", 0x2b0", code.step(n))}


def without_wait(code):
    """A wait that is not there: neither the test nor the branch."""
    for n in code.find("PHASECHK"):
        if re.match(r"@!?P\d BRA", code.step(n + 1)):
            yield {n: NOP, n + 1: NOP}


def unread_parameters(code):
    for place in sorted({found for n in code.find(r"^U?LDC(\.64)? ") for found in
                         re.findall(r"c\[0x0\]\[(0x[2-9a-f][0-9a-f]{2})\]", code.step(n))}):
        if int(place, 16) >= 0x210:
            yield from all_of(code, rf"^(U?)LDC(\.64)? (U?R\d+), c\[0x0\]\[{place}\]", r"\1MOV \3, \1RZ")


def ring(code):
    """Where an init of mbarriers gets its count."""
    first = code.find(r"SYNCS\.EXCH")
    return first[-1] + 1 if first else 0


KINDS = {
    "bulk group not waited for": ((ALG1, FWD, PLANNED, BWD), lambda c: all_of(c, r"^DEPBAR\.LE SB0", NOP)),
    "bulk group of the loop not waited for": ((ALG1, FWD, BWD), lambda c: each(c, r"^DEPBAR\.LE SB0", lambda _: NOP)),
    "named barrier: count": ((ALG1, FWD, PLANNED, SHARED), lambda c: each(c, r"(^BAR\.\S+ \w+, 0x\w+)0\b", r"\g<1>8")),
    "named barrier: other count": ((ALG1, SHARED), lambda c: each(c, r"(^BAR\.\S+ \w+), 0x\w+", r"\1, 0x40")),
    "named barrier: id": ((SHARED, COMBINE), lambda c: each(c, r"(^BAR\.\S+) 0x\w+", r"\1 0x9")),
    "named barrier: absent": ((ALG1, FWD, SHARED, COMBINE, KEYS), lambda c: each(c, r"^BAR\.", lambda _: NOP)),
    "init count": ((ALG1, FWD, BWD, E4M3, KEYS, QUERIES), lambda c: each(
        c, r"^(UMOV UR\d+,|USEL UR\d+, UR\d+,) 0x(8|4|f|80|c|3)\b", r"\1 0x5", 0, ring(c))),
    "wait at another barrier": ((ALG1, FWD, BWD, E4M3, KEYS, QUERIES), lambda c: waits(c, other_barrier(c)[1])),
    "arrival at another barrier": ((ALG1, FWD, BWD, KEYS, QUERIES), lambda c: each(
        c, r"ARRIVE\.TRANS64\.A1T0", other_barrier(c)[1])),
    "TMA at another barrier": ((ALG1, FWD, BWD, KEYS), tma_elsewhere),
    "parity never flips": ((ALG1, FWD, BWD, E4M3, KEYS, QUERIES), lambda c: waits(
        c, lambda s: re.sub(r", R\d+$", ", RZ", s))),
    "released before the reduction is done": ((BWD,), lambda c: all_of(
        c, r"^CCTL\.IVALL", NOP, c.find("UBLKRED")[0])),
    "release without a fence": ((BWD, FWD, ALG1, SHARED), lambda c: each(c, r"MEMBAR\.ALL\.GPU", lambda _: NOP)),
    "acquire without order": ((BWD, FWD, SHARED), lambda c: each(c, r"^LDG\.E\.STRONG\.GPU", r"LDG.E")),
    "semaphore changed too early": ((BWD,), lambda c: (
        {n: c.step(n + 2), n + 1: NOP, n + 2: c.step(n)} for n in c.find(r"^DEPBAR\.LE SB0, 0x0")
        if c.step(n + 1) == "CCTL.IVALL")),
    "RED where UBLKRED should be": ((BWD,), lambda c: each(
        c, "UBLKRED", lambda _: "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR26][R2.64], R19")),
    "griddepcontrol missing": ((BWD, FINISH, KEYS, QUERIES), lambda c: each(c, "^(ACQBULK|PREEXIT)", NOP)),
    "fence of the backward missing": ((BWD, KEYS, QUERIES), lambda c: each(c, r"^FENCE\.VIEW\.ASYNC", lambda _: NOP)),
    "row sums halved": ((ALG1, FWD, PLANNED, E4M3), lambda c: in_loop(c, "^FADD", NOP, 2)),
    "a score left out of the sums": ((ALG1, FWD, PLANNED), lambda c: each(c, "^FADD", lambda _: NOP, *c.main_loop())),
    "scale gone": ((ALG1, FWD, BWD, E4M3, KEYS, QUERIES), lambda c: in_loop(
        c, r"^FFMA (\S+), (\S+), (\S+), (\S+)$", r"FADD \1, \2, \4")),
    "weight of O gone": ((ALG1, FWD, PLANNED), lambda c: all_of(
        c, r"^FMUL (\S+), (\S+), (\S+)$", r"MOV \1, \2", c.main_loop()[1])),
    "two-level sums gone": ((TWO_LEVEL,), lambda c: all_of(c, r"^(FADD|FFMA|FMUL)", NOP, *c.main_loop())),
    "a sum of the second level gone": ((TWO_LEVEL,), lambda c: each(c, r"^(FADD|FFMA)", lambda _: NOP, *c.main_loop())),
    "wait of the backward missing": ((BWD, KEYS, QUERIES), without_wait),
    "permute": ((E4M3, FWD, BWD), lambda c: each(c, r"(^PRMT \S+ \S+) 0x\w+", r"\1 0x3120")),
    "permutes of the transposition": ((E4M3,), lambda c: all_of(c, r"(^PRMT \S+ \S+) 0x6420", r"\1 0x7531")),
    "rounding of conversions": ((ALG1, FWD, BWD, FINISH, KEYS, QUERIES), lambda c: each(
        c, r"^F2FP\.(BF16|F16)\.F32", r"F2FP.\1.F32.RZ")),
    "rounding of other arithmetic": ((ALG1, FWD), lambda c: each(c, r"^(FMUL|FFMA) ", r"\1.RZ ")),
    "swizzle or stride of a descriptor": ((ALG1, FWD, BWD, KEYS, QUERIES), lambda c: each(
        c, "0x40000040", "0x80000020")),
    "tensor map": ((ALG1, FWD, BWD, KEYS, QUERIES), other_map),
    "parameter never read": ((ALG1, FWD, BWD, COMBINE, FINISH, KEYS, QUERIES), unread_parameters),
    "vote inverted": ((FWD, PLANNED, E4M3), lambda c: each(c, r"(^VOTE\.A\w+ P\d), (P\d)", r"\1, !\2")),
    "vote of all for one of any": ((FWD, PLANNED), lambda c: each(c, r"^VOTE\.ANY (P\d)", r"VOTE.ALL \1")),
}


class Suite:
    def __init__(self, tool, nvdisasm, cubins, folder):
        self.tool, self.nvdisasm, self.cubins, self.folder = tool, nvdisasm, cubins, folder
        self.codes, self.whole = {}, {}

    def read(self, row):
        path = os.path.join(self.cubins, row + ".cubin")
        if not os.path.exists(path):
            sys.exit(f"no {path}")
        text = subprocess.run([self.nvdisasm, "-c", path], check=True, capture_output=True, text=True).stdout
        self.codes[row] = Code(text)
        self.whole[row] = self.found(row, "whole", text)

    def found(self, row, name, text):
        """Of this text the figures, the rules of its contract that it breaks, and those of the preset, as sets."""
        path = os.path.join(self.folder, f"{row}-{name}.sass")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        (figures,) = changed.listed(self.tool, path).values()
        result = [{figure for figure in figures.items() if not figure[0].endswith("instructions")}]
        for preset in ([], ["--preset"]):
            run = subprocess.run([self.tool, "check", path, *(preset or [row]), *preset, "--json"], text=True,
                                 capture_output=True)
            if run.returncode == 2 and preset:  # not attention: a pass
                result.append(set())
            elif run.returncode not in (0, 1):
                sys.exit(f"{path}: {run.stderr.strip()}")
            else:
                result.append({f["rule"] for f in json.loads(run.stdout)["findings"] if f["state"] == "broken"})
        os.unlink(path)
        return result

    def fault(self, kind, row, number, changes):
        name = f"{re.sub('[ :]+', '-', kind)}-{number}"
        found = self.found(row, name, self.codes[row].changed(changes))
        return kind, row, changes, [after - before for after, before in zip(found, self.whole[row])]


def main():
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    tool, nvdisasm, cubins, *wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    kinds = {kind: KINDS[kind] for kind in wanted or KINDS}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        suite = Suite(tool, nvdisasm, cubins, folder)
        list(pool.map(suite.read, sorted({row for rows, _ in kinds.values() for row in rows})))
        jobs = []
        for kind, (rows, faults) in kinds.items():
            for row in rows:
                found = list(faults(suite.codes[row]))
                some = random.Random(kind + row).sample(found, min(SITES, len(found)))
                jobs += [pool.submit(suite.fault, kind, row, n, changes) for n, changes in enumerate(some)]
        results = [job.result() for job in jobs]
    counts = {kind: [0, 0, 0, 0] for kind in kinds}
    for kind, row, changes, found in results:
        counts[kind][0] += 1
        for which in range(3):
            counts[kind][which + 1] += bool(found[which])
        if "--verbose" in options or not found[0]:
            place = suite.codes[row].step(min(changes))
            print(f"{'not named' if not found[0] else 'named'}: {kind}, {row}, {len(changes)} changes from: {place}",
                  *(f"{figure}: {value}" for figure, value in sorted(found[0])[:3]), sep="\n    ")
    counts["all"] = [sum(count[k] for count in counts.values()) for k in range(4)]
    print(f"{'kind':42}faults  by a figure  by the contract  by the preset")
    for kind, (faults, figures, contract, preset) in counts.items():
        print(f"{kind:42}{faults:6}{figures:13}{contract:17}{preset:15}")
    missing = [kind for kind, count in counts.items() if not count[0]]
    if "--report" not in options:
        weak = [kind for kind, count in counts.items() if count[0] and count[1] <= 0.5 * count[0]]
        if weak:
            print("of these kinds figures name not more than half: " + ", ".join(weak))
        sys.exit(bool(weak) or counts["all"][1] < 0.9 * counts["all"][0])
    if missing:
        print("no fault of these kinds: " + ", ".join(missing))


if __name__ == "__main__":
    main()
