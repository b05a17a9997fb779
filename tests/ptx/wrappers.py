"""Compares the PTX of the probe kernels with the "ptx:" comments above the wrappers of ptx/isa.

A comment names the wrapper's operands after its parameters, so that their order can be checked: every kernel of
probe.cu has the parameters of the wrapper that it calls, and each register of the instruction is followed back to the
parameter that it was loaded from. A name that is no parameter is the wrapper's return value, which is followed to the
place where the kernel stores it.

A wrapper is one instruction, or a few that belong together, in their order, with "; " between them. An address that
mapa makes is that of the thread block with a rank; what a comment names by it is followed back to mapa's own operand.
"""
import re
from dataclasses import dataclass, field


@dataclass
class Wrapper:
    name: str
    template: list  # names of the template parameters
    parameters: list  # of Parameter
    returns: str
    body: str
    text: str  # of the parameter list
    comment: object = None  # Comment


@dataclass
class Parameter:
    name: str
    type: str
    count: int  # of an array that is passed by reference; 0: not an array
    written: bool  # a reference that is not const


@dataclass
class Comment:
    where: str  # file:line of the function below it
    name: str  # as written, with ## in macros
    parameters: str
    instruction: str  # "" if the comment says that there is none
    problem: str = ""
    used: bool = False


@dataclass
class Probe:
    name: str
    parameters: list  # of names
    counts: dict  # length of the Array parameters
    call: str
    template: list  # values of the template parameters
    arguments: list


@dataclass
class Trace:
    """What the probe's PTX says: the inline assembly, and for every register what it holds."""
    blocks: int = 0
    instructions: list = field(default_factory=list)  # (predicate, opcode, operands) of the inline assembly
    ranks: list = field(default_factory=list)  # of each mapa: what its rank holds
    roots: dict = field(default_factory=dict)
    stores: dict = field(default_factory=dict)  # offset: register


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


def closing(text, at):
    """Index after the bracket that closes the one at `at`; brackets in string literals do not count."""
    pairs = {"(": ")", "{": "}"}
    opening, depth, quoted = text[at], 0, False
    while True:
        if text[at] == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted and text[at] in (opening, pairs[opening]):
            depth += 1 if text[at] == opening else -1
            if depth == 0:
                return at + 1
        at += 1


def split_commas(text):
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


# Sources --------------------------------------------------------------------------------------------------------------

def comments_of(path, text):
    """The comment above every function marked FA3_DEVICE, also inside macros."""
    lines = [line.rstrip("\\").rstrip() for line in text.split("\n")]
    found = []
    for i, line in enumerate(lines):
        match = re.match(r"\s*FA3_DEVICE\s+[\w ]+?\s*([\w#]+)\(", line)
        if not match:
            continue
        below = "\n".join(lines[i:])
        start = match.end() - 1
        parameters = squeeze(below[start:closing(below, start)])
        above = i - 1
        if lines[above].strip().startswith("template"):
            above -= 1
        block = []
        if lines[above].endswith("*/"):
            while True:
                block.insert(0, lines[above])
                if "/*" in lines[above]:
                    break
                above -= 1
            block = [squeeze(" ".join(block)).removeprefix("/* ").removesuffix(" */")]
        else:
            while lines[above].startswith("//"):
                block.insert(0, lines[above].removeprefix("//"))
                above -= 1
            joined = []
            for piece in block:
                if piece.startswith("     ") and joined:
                    joined[-1] += " " + piece.strip()
                else:
                    joined.append(piece.strip())
            block = joined
        body = below[below.index("{", closing(below, start)):]
        body = body[:closing(body, 0)]
        comment = Comment(f"{path}:{i + 1}", match[1], parameters, "")
        stated = [piece.removeprefix("ptx:").strip() for piece in block if piece.startswith("ptx:")]
        silent = any(piece.startswith("No instruction") for piece in block)
        if not re.search(r"\basm\b", body):
            comment.used = True  # a helper of the wrappers, it has no PTX of its own
        elif len(stated) + silent != 1:
            comment.problem = ('needs one line "// ptx: <the exact PTX>;  (<section title>)" above it, or '
                               '"// No instruction"')
        elif stated:
            parts = re.fullmatch(r"(.+?)\s*;\s+\(([a-z][^()]*)\)", stated[0])
            if parts:
                comment.instruction = parts[1]
            else:
                comment.problem = f'"{stated[0]}" must end in ";  (<title of the section of the PTX ISA>)"'
        found.append(comment)
    return found


def parameter_of(text):
    array = re.fullmatch(r"(.+?)\s*\(&(\w+)\)\[(\w+)\]", text)
    if array:
        count = int(array[3]) if array[3].isdigit() else -1
        return Parameter(array[2], squeeze(array[1]), count, not array[1].startswith("const"))
    simple = re.fullmatch(r"(.+?)(&?)\s*(\w+)", text)
    return Parameter(simple[3], squeeze(simple[1]), 0, bool(simple[2]) and not text.startswith("const"))


def wrappers_of(preprocessed):
    found = []
    pattern = r"(?:template <([\w ,]+)>\s*)?__device__ __forceinline__ ([\w ]+?) (\w+)\("
    for match in re.finditer(pattern, preprocessed):
        end = closing(preprocessed, match.end() - 1)
        text = preprocessed[match.end():end - 1]
        start = preprocessed.index("{", end)
        template = re.findall(r"int (\w+)", match[1] or "")
        found.append(Wrapper(match[3], template, [parameter_of(part) for part in split_commas(text)], match[2],
                             preprocessed[start:closing(preprocessed, start)], squeeze(f"({text})")))
    return found


def probes_of(preprocessed):
    found = []
    for match in re.finditer(r'extern "C" __global__ void __launch_bounds__\(128, 1\) (\w+)\(', preprocessed):
        end = closing(preprocessed, match.end() - 1)
        names, counts = [], {}
        for part in split_commas(preprocessed[match.end():end - 1]):
            names.append(re.search(r"(\w+)$", part)[1])
            array = re.match(r"Array<\w+, (\d+)>", part)
            if array:
                counts[names[-1]] = int(array[1])
        start = preprocessed.index("{", end)
        body = preprocessed[start + 1:closing(preprocessed, start) - 1]
        call = re.match(r"\s*(?:\*out = )?(\w+)(?:<([\d, ]+)>)?(\(.*?\));", body, re.S)
        arguments = [argument.removesuffix(".v") for argument in split_commas(call[3][1:-1])]
        found.append(Probe(match[1], names, counts, call[1], re.findall(r"\d+", call[2] or ""), arguments))
    return found


# PTX ------------------------------------------------------------------------------------------------------------------

def tokens_of(text):
    return re.findall(r"%[a-z]+\.[xyz]|[%$]?[A-Za-z_][\w$]*|-?\d+|[^\s\w]", text)  # the first: special registers


def is_register(token):
    return re.fullmatch(r"%?[A-Za-z_]\w*", token) and token != "_"


def kernels_of(ptx):
    parts = re.split(r"^\.visible \.entry (\w+)", ptx, flags=re.M)
    return {name: body[body.index("\n{\n") + 3:] for name, body in zip(parts[1::2], parts[2::2])}


def trace(kernel, parameters):
    """Follows the values through a kernel without branches."""
    result = Trace()
    inline = False
    for line in kernel.split("\n"):
        if "begin inline asm" in line:
            inline = True
            result.blocks += 1
        elif "end inline asm" in line:
            inline = False
        for statement in re.sub(r"//.*", "", line).split(";"):
            statement = statement.strip()
            if statement.startswith("{") and "}" not in statement:
                statement = statement.lstrip("{ ")
            match = re.fullmatch(r"(?:(@!?[%\w]+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?", statement)
            if not match or match[2] == "ret":
                continue
            predicate, opcode, operands = match[1] or "", match[2], match[3] or ""
            loaded = re.fullmatch(r"(%\w+), \[\w+_param_(\d+)(?:\+(\d+))?\]", operands)
            stored = re.fullmatch(r"\[(%\w+)(?:\+(\d+))?\], (%\w+)", operands)
            if inline and opcode.startswith("mapa."):
                target, address, rank = [token for token in tokens_of(operands) if is_register(token)]
                result.roots[target] = result.roots.get(address, {address})
                result.ranks.append(result.roots.get(rank, {rank}))
            elif inline and not opcode.startswith(("setp.", "selp.")):
                result.instructions.append((predicate, opcode, operands))
                # Outputs are what nothing has written before. They get a value of their own.
                for token in tokens_of(predicate + " " + operands):
                    if is_register(token):
                        result.roots.setdefault(token, {f"{token} of the instruction"})
            elif opcode.startswith("ld.param.") and loaded:
                result.roots[loaded[1]] = {(parameters[int(loaded[2])], int(loaded[3] or 0))}
            elif opcode.startswith("st.global.") and stored:
                result.stores[int(stored[2] or 0)] = stored[3]
            elif not opcode.startswith((".", "ld.", "st.")):
                target, *sources = [token for token in tokens_of(operands) if is_register(token)]
                result.roots[target] = set().union(*(result.roots.get(source, {source}) for source in sources))
    return result


# Comparison -----------------------------------------------------------------------------------------------------------

def stated_instructions(comment):
    """Those of a comment, without mapa, whose result stands for its operand; and the names of mapa's ranks."""
    instructions, ranks, mapped = [], [], {}
    for text in comment.instruction.split("; "):
        mapa = re.fullmatch(r"(?:@\w+\s+)?mapa\.\S+ (\w+), (\w+), (\w+)", text)
        if mapa:
            mapped[mapa[1]] = mapa[2]
            ranks.append(mapa[3])
            continue
        for name, address in mapped.items():
            text = text.replace(f"[{name}]", f"[{address}]")
        instructions.append(text)
    return instructions, ranks


def expected_tokens(instruction, comment, wrapper, probe):
    """A comment's instruction for this probe: names of macro parameters in the opcode and array operands replaced."""
    match = re.fullmatch(r"(?:@(\w+)\s+)?(\S+)(?:\s+(.*))?", instruction)
    predicate, opcode, operands = match[1] or "", match[2], match[3] or ""
    named = re.fullmatch(re.sub(r"##(\w+?)##", r"(?P<\1>\\w+)", comment.name), wrapper.name).groupdict()
    if "d" in probe.counts:
        named["n"] = str(2 * probe.counts["d"])  # a thread holds n / 2 of the 64 x n accumulators
    opcode = re.sub(r"\{(\w+)\}", lambda m: named.get(m[1], m[0]), opcode)
    for name, count in probe.counts.items():
        operands = re.sub(r"\{" + name + r"\}", "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}", operands)
    return predicate, opcode, tokens_of(operands)


def compare(wrapper, probe, kernel):
    """Returns what is wrong with the probe's PTX, or "" """
    found = trace(kernel, probe.parameters)
    if not wrapper.comment.instruction:
        return f"has the instruction {found.instructions[0][1]}" if found.instructions else ""
    instructions, ranks = stated_instructions(wrapper.comment)
    if len(found.instructions) != len(instructions):
        return f"is {len(found.instructions)} instructions, its comment says {len(instructions)}"
    if bool(found.ranks) != bool(ranks) or any(root != {(name, 0)} for root in found.ranks for name in ranks):
        return f"maps addresses to the rank {found.ranks}, its comment says {ranks}"
    for emitted, stated in zip(found.instructions, instructions):
        if problem := compare_one(wrapper, probe, found, emitted, stated):
            return problem
    return ""


def compare_one(wrapper, probe, found, instruction, stated_instruction):
    predicate, opcode, operands = instruction
    stated_predicate, stated_opcode, stated = expected_tokens(stated_instruction, wrapper.comment, wrapper, probe)
    if opcode != stated_opcode:
        return f"emits {opcode}, its comment says {stated_opcode}"
    emitted = tokens_of(operands)
    written = " ".join(emitted)
    if len(emitted) != len(stated) or bool(predicate) != bool(stated_predicate):
        return f"emits the operands {predicate} {written}, its comment says {' '.join(stated)}"

    places, outputs, offset = {}, {}, 0  # operand name: where its value comes from, where the kernel stores it
    for parameter in wrapper.parameters:
        for i in range(probe.counts.get(parameter.name, 1)):
            name = f"{parameter.name}{i}" if parameter.count else parameter.name
            places[name] = (parameter.name, 4 * i)
            if parameter.written:
                outputs[name] = offset
                offset += 4
    pairs = list(zip(emitted, stated))
    if predicate:
        pairs.append((predicate.lstrip("@"), stated_predicate))
    for token, name in pairs:
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name == "_":
            right = token == name
        elif name in wrapper.template:
            right = token == probe.template[wrapper.template.index(name)]
        elif name in places:
            # A register that the instruction only writes has no parameter behind it; where it is stored counts.
            root = found.roots.get(token, set())
            only_written = name in outputs and root == {f"{token} of the instruction"}
            right = only_written or root == {places[name]}
            right = right and (name not in outputs or found.stores.get(outputs[name]) == token)
        else:
            right = wrapper.returns != "void" and is_register(token) and 0 in found.stores and \
                found.roots.get(found.stores[0]) == {f"{token} of the instruction"}
        if not right:
            return f"emits the operands {predicate} {written}: {token} is not {name}"
    return ""


def check(headers, preprocessed, ptx):
    """headers: {path: text} of ptx/isa; preprocessed: probe.cu; ptx: of probe.cu. Returns the list of complaints."""
    complaints = []
    comments = [comment for path, text in sorted(headers.items()) for comment in comments_of(path, text)]
    complaints += [f"{comment.where}: {comment.name}: {comment.problem}" for comment in comments if comment.problem]
    wrappers = [wrapper for wrapper in wrappers_of(preprocessed) if re.search(r"\basm\b", wrapper.body)]
    if len(re.findall(r"\basm\b", preprocessed)) != sum(len(re.findall(r"\basm\b", w.body)) for w in wrappers):
        complaints.append("ptx/isa has asm outside of the functions marked FA3_DEVICE: make it a wrapper")

    for wrapper in wrappers:
        candidates = [comment for comment in comments
                      if re.fullmatch(re.sub(r"##(\w+?)##", r"\\w+", comment.name), wrapper.name)]
        if len(candidates) > 1:
            candidates = [comment for comment in candidates if comment.parameters == wrapper.text]
        if len(candidates) == 1:
            wrapper.comment = candidates[0]
            wrapper.comment.used = True
        else:
            complaints.append(f"{wrapper.name}{wrapper.text}: {len(candidates)} functions in ptx/isa fit, must be one")
    complaints += [f"{comment.where}: {comment.name}: probe.cu does not include its header" for comment in comments
                   if not comment.used]

    probed, kernels = set(), kernels_of(ptx)
    for probe in probes_of(preprocessed):
        fitting = []
        for i, wrapper in enumerate(wrappers):
            names = [parameter.name for parameter in wrapper.parameters]
            arrays = {parameter.name: parameter.count for parameter in wrapper.parameters if parameter.count}
            if (wrapper.name == probe.call and names == probe.arguments == probe.parameters[:len(names)] and
                    all(count in (-1, probe.counts.get(name)) for name, count in arrays.items())):
                fitting.append(i)
        if len(fitting) != 1:
            complaints.append(f"{probe.name}: must call one wrapper with the wrapper's parameters and their names")
            continue
        wrapper = wrappers[fitting[0]]
        probed.add(fitting[0])
        if wrapper.comment and not wrapper.comment.problem:
            problem = compare(wrapper, probe, kernels[probe.name])
            if problem:
                complaints.append(f"{wrapper.comment.where}: {wrapper.name} ({probe.name}) {problem}")
    complaints += [f"{wrapper.name}{wrapper.text}: no probe: call it from a kernel of tests/ptx/probe.cu"
                   for i, wrapper in enumerate(wrappers) if i not in probed]
    return complaints
