#!/usr/bin/env python3
"""What pages say must be so: links lead somewhere, named files and make targets exist, shown tables were printed.

usage: docs.py [--update]
A page shows what a command printed between two comments,
    <!-- figures: doc/figures/demo.md -->            or, for its first table alone, doc/figures/demo.md table 1
    <!-- end figures -->
and the text between them must be that file or table, letter for letter. --update takes what `make demo` and `make eval` printed over into
doc/figures, and every block from its file. tools/check/figures.py holds the figures themselves against the program.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRINTED = {"doc/figures/demo.md": "build/demo/report.md", "doc/figures/demo.json": "build/demo/report.json", "doc/figures/eval.md": "build/demo/eval.md"}
BLOCK = re.compile(r"(<!-- figures: (\S+)(?: table (\d+))? -->\n)(.*?)(<!-- end figures -->)", re.S)
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
ROOMS = ("apps/", "cmake/", "doc/", "engine/", "include/", "src/", "tests/", "tools/", ".ci/")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def pages():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in ("build", ".git"))
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def shown(block):
    """What a block must show, or None where its file or table is missing."""
    if not os.path.exists(os.path.join(ROOT, block.group(2))):
        return None
    text = read(block.group(2))
    if not block.group(3):
        return text
    tables, number = TABLE.findall(text), int(block.group(3))
    return tables[number - 1] if 0 < number <= len(tables) else None


def update():
    for figures, printed in PRINTED.items():
        if os.path.exists(os.path.join(ROOT, printed)):
            os.makedirs(os.path.dirname(os.path.join(ROOT, figures)), exist_ok=True)
            with open(os.path.join(ROOT, figures), "w", encoding="utf-8") as file:
                file.write(read(printed))
    for page in pages():
        text = read(page)
        new = BLOCK.sub(lambda block: block.group(1) + (shown(block) or block.group(4)) + block.group(5), text)
        if new != text:
            with open(os.path.join(ROOT, page), "w", encoding="utf-8") as file:
                file.write(new)
            print(f"updated {page}")


def complaints_of(page, targets):
    text = read(page)

    def at(match):
        return f"{page}:{text.count(chr(10), 0, match.start()) + 1}"

    for link in LINK.finditer(text):
        target = link.group(1).split("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), target)):
                yield f"{at(link)}: the link leads nowhere: {target}"
    for code in CODE.finditer(text):
        words = code.group(1).split()
        if words and words[0].startswith(ROOMS) and re.fullmatch(r"[\w./-]+", words[0]):
            if not os.path.exists(os.path.join(ROOT, words[0])):
                yield f"{at(code)}: there is no {words[0]}"
        if len(words) >= 2 and words[0] == "make" and re.fullmatch(r"[a-z][a-z-]*", words[1]) and words[1] not in targets:
            yield f"{at(code)}: the Makefile has no target {words[1]}"
    if text.count("<!-- figures:") != len(BLOCK.findall(text)):
        yield f"{page}: a figures comment without its end"
    for block in BLOCK.finditer(text):
        if shown(block) is None:
            yield f"{at(block)}: there is no {block.group(2)}" + (f" with a table {block.group(3)}" if block.group(3) else "")
        elif shown(block) != block.group(4):
            yield f"{at(block)}: the figures are not those of {block.group(2)}, letter for letter; make figures"


def main():
    if sys.argv[1:] == ["--update"]:
        update()
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.M))
    n_pages, complaints = 0, []
    for page in pages():
        n_pages += 1
        complaints += complaints_of(page, targets)
    for line in complaints:
        print(line)
    print(f"docs: {n_pages} pages, {len(complaints)} complaints")
    sys.exit(1 if complaints or not n_pages else 0)


if __name__ == "__main__":
    main()
