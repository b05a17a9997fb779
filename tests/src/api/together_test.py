"""What cannot be had together: the tables of fa3.h name the same pairs as the one in src/rules/together.cpp, which
refuses them, except for those that follow from a number and are refused where the number is. Argument: the project's
folder."""

import pathlib
import re
import sys

E4M3 = ["e4m3_q", "e4m3_cache", "latent_cache"]
# The header's words, without what stands in parentheses, as features of the code; of partners the names are the same.
FEATURES = {"e4m3": E4M3, "e4m3 q or k": E4M3[:2], "e4m3 under 16-bit q": E4M3[1:], "v as tiles": ["v_tiles"],
            "FA3_FLAG_TWO_LEVEL": ["two_level"], "FA3_FLAG_BATCH_INVARIANT": ["batch_invariant"],
            "FA3_FLAG_CENTERED_K": ["centered_k"], "FA3_MASK_CHUNK": ["chunk_mask"], "o of fp32": ["fp32_o"],
            "whatever makes the call plan lengths": ["planned_lengths"]}
LARGE = "head dimensions above 256"
NUMBERS = {("scales of blocks", "planned_lengths"), ("qv", "head_dim above 64"), (LARGE, "e4m3_q"),
           (LARGE, "e4m3_cache"), ("head_dim above 512", "v that is not part of k"),
           ("head_dim above 512", "as latent.md says")}


def pairs_in_header(text):
    pairs = set()
    for table in re.findall(r"Not together.*?\n((?: \* \|.*\n)+)", text):
        for line in table.splitlines()[2:]:
            device = "reference" in line
            cells = [[feature for word in cell.split(",") for feature in FEATURES.get(word.strip(), [word.strip()])]
                     for cell in re.sub(r"\s*\([^)]*\)", "", line).split("|")[1:3]]
            pairs |= {(*sorted((a, b)), device) for a in cells[0] for b in cells[1] if (a, b) not in NUMBERS}
    return pairs


def pairs_in_code(text):
    pairs = set()
    for feature, partners, rest in re.findall(r"^    \{(\w+), \{([\w, ]+)\}(.*)\},$", text, flags=re.MULTILINE):
        for partner in partners.split(", "):
            pairs |= {(*sorted((feature, b)), "true" in rest) for b in (["qv", LARGE] if partner == "wide" else [partner])}
    return pairs


root = pathlib.Path(sys.argv[1])
header = pairs_in_header((root / "include/fa3.h").read_text())
code = pairs_in_code((root / "src/rules/together.cpp").read_text())
problems = [f"not in {where}: {a} with {b}{' on the device' if device else ''}"
            for where, missing in [("together.cpp", header - code), ("fa3.h", code - header)]
            for a, b, device in sorted(missing)]
print("\n".join(problems) or f"{len(code)} pairs")
sys.exit(bool(problems) or not code)
