#!/usr/bin/env python3
"""Prints the public header as Doxygen wants to read it.

The header's comments are plain ones, as it is read by people first. Here the comment at its top becomes the main page,
a line `/* ---- title ---- */` begins a group, a comment that stands alone before an empty line describes its group, one
on its own lines documents the declaration behind it, one behind code that code. Formulas, which are indented by three
blanks, stay as they are.
"""

import argparse
import re
import sys

SECTION = re.compile(r"/\* -{4} (.*?) -+ \*/$")


def group_name(title):
    return re.sub(r"\W+", "_", title)


def open_group(name):
    return f"/** @addtogroup {name} */ /** @{{ */"


def comments(lines):
    """Yields (first line, last line) of each comment that stands on lines of its own."""
    begin = None
    for number, line in enumerate(lines):
        if begin is None and line.lstrip().startswith("/*"):
            begin = number
        if begin is not None and "*/" in line:
            if line.rstrip().endswith("*/"):
                yield begin, number
            begin = None


def text_of(lines):
    """The comment's text, without what frames it."""
    body = "\n".join(lines).strip()[2:-2].rstrip()
    first, *rest = body.split("\n")
    return [first.strip(), *(re.sub(r"^\s*\* ?", "", line) for line in rest)]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def joined_rows(text):
    """A row of a table whose first cell is empty goes on with the row above."""
    result = []
    for line in text:
        if line.startswith("|") and not cells(line)[0]:
            above = cells(result.pop())
            line = "| " + " | ".join(" ".join(pair).strip() for pair in zip(above, cells(line))) + " |"
        result.append(line)
    return result


def marked_up(text, names):
    """Formulas as code; links to the names of the header; and no character that Doxygen takes for a command."""
    text = joined_rows(text)
    result, in_formula = [], False
    for number, line in enumerate(text):
        begins = line.startswith("  ") and line.strip() and (number == 0 or not text[number - 1].strip())
        if begins and not in_formula and not line.lstrip().startswith("- "):
            result.append("@code{.txt}")
            in_formula = True
        elif in_formula and not line.strip():
            result.append("@endcode")
            in_formula = False
        if not in_formula:
            line = re.sub(r"([@\\<>#])", r"\\\1", line)
            line = re.sub(r"\b(?:fa3|FA3)_\w+", lambda word: "#" * (word[0] in names) + word[0], line)
        result.append(line)
    return result + ["@endcode"] * in_formula


def comment(text, opening="/**"):
    return [opening, *text, "*/"]


def documented(source):
    lines = [*source.split("\n"), ""]
    own = dict(comments(lines))
    names = set(re.findall(r"^FA3_API .*?(\w+)\(|^#define (FA3_\w+)|^ +(FA3_\w+) = ", source, re.MULTILINE))
    names = {name for match in names for name in match if name} - {"FA3_H", "FA3_API"}
    result, number, in_group, at_top = [], 0, None, True
    while number < len(lines):
        line = lines[number]
        section = SECTION.match(line)
        if section:
            if in_group:
                result.append("/** @} */")
            title = section.group(1)
            result.append(f"/** @defgroup {group_name(title)} {title.capitalize()} */")
            in_group = group_name(title)
            result.append(open_group(in_group))
            number += 1
        elif number in own:
            last = own[number]
            text = marked_up(text_of(lines[number : last + 1]), names)
            if at_top:
                name, _, title = text[0].partition(":")
                result += comment([f"@mainpage {name}:{title.rstrip('.')}", *text[1:]]) + ["/** @file */"]
                at_top = False
            elif in_group and not lines[last + 1].strip():
                result += ["/** @} */", *comment([f"@addtogroup {in_group}", *text]), open_group(in_group)]
            else:
                result += comment(text)
            number = last + 1
        else:
            # A comment behind code may go on over the next lines.
            match = re.match(r"(.*\S)(\s+)/\* (.*)$", line)
            if match and not line.lstrip().startswith(("#", "/*", "*")):
                end = number
                while "*/" not in lines[end]:
                    end += 1
                text = text_of(["/* " + match.group(3), *lines[number + 1 : end + 1]])
                result += [match.group(1), *comment(marked_up(text, names), "/**<")]
                number = end + 1
            else:
                result.append("/** @} */\n" + line if in_group and line.startswith("#ifdef __cplusplus") else line)
                number += 1
    return "\n".join(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("header")
    sys.stdout.write(documented(open(parser.parse_args().header, encoding="utf-8").read()))
