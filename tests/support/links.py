"""Links in Markdown documents, whose targets must be there: files, and headings of the document that is linked."""
import re


def headings(document):
    """What GitHub makes of them for links."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(document):
    """(text, target) of each link and picture; code has none."""
    code = r"^```.*?^```|(?<=`)[^`\n]*\]\([^`\n]*(?=`)"
    text = re.sub(code, "", document.read_text(), flags=re.M | re.S)
    return re.findall(r"\[([^\]]*)\]\(([^)\s]*)\)", text)


def dead(document, root):
    """The links that lead to nothing, or out of the folder `root`. Those to other sites are not followed."""
    found = []
    for text, target in links(document):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        inside = path.exists() and path.resolve().is_relative_to(root.resolve())
        if not inside or (heading and heading not in headings(path)):
            found.append(f"{document.relative_to(root)}: [{text}]({target})")
    return found
