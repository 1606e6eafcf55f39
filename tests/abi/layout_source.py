"""Writes the C program that prints the layout of every public struct and the value of every public enumerator.

usage: layout_source.py C_COMPILER INCLUDE_DIRECTORY OUTPUT
Reads the headers preprocessed, so that lists made by macros count too. The program fails by itself where bytes of a struct
belong to no member that this script found.
"""
import os
import re
import subprocess
import sys

STRUCT = re.compile(r"typedef struct (oct_\w+)\s*\{(.*?)\}\s*(\w+)\s*;", re.S)
ENUM = re.compile(r"typedef enum (oct_\w+)\s*\{(.*?)\}\s*(\w+)\s*;", re.S)
MACRO = re.compile(r"^#define (OCT_(?!VERSION_)\w+) \(?-?(?:0x[0-9A-Fa-f]+|\d+)u?\)?\s*(?:/\*.*)?$", re.M)

PROLOGUE = """/* Written by tests/abi/layout_source.py. */
#include "octavo/octavo.h"
#include <stdio.h>

static size_t end_of_last;
static int n_gaps;

/* A hole of 8 bytes or more is a member that was not found: no public member is aligned to more than 8. */
static void reach(const char *name, size_t offset)
{
    if (offset >= end_of_last + 8) {
        fprintf(stderr, "%s: bytes %zu to %zu belong to no known member\\n", name, end_of_last, offset);
        n_gaps++;
    }
}

static void member(const char *name, size_t offset, size_t size)
{
    reach(name, offset);
    printf("%s %zu %zu\\n", name, offset, size);
    end_of_last = offset + size;
}

static void end_struct(const char *name, size_t size)
{
    reach(name, size);
    printf("sizeof %s %zu\\n", name, size);
    end_of_last = 0;
}

int main(void)
{
"""


def members(body):
    """Names of a struct's members, in order."""
    names = []
    for declaration in body.split(";"):
        declaration = " ".join(declaration.split())
        if not declaration:
            continue
        function = re.match(r".*?\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
        if function:
            names.append(function.group(1))
            continue
        for declarator in declaration.split(","):
            match = re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*$", declarator)
            if not match:
                sys.exit(f"layout_source.py: cannot read the member '{declaration}'")
            names.append(match.group(1))
    return names


def main():
    compiler, include, output = sys.argv[1:]
    text = subprocess.run([compiler, "-std=c17", "-E", "-P", "-I", include, os.path.join(include, "octavo", "octavo.h")],
                          check=True, capture_output=True, text=True).stdout
    lines = [PROLOGUE]
    structs = STRUCT.findall(text)
    enums = ENUM.findall(text)
    if not structs or not enums or len(structs) != len(re.findall(r"typedef struct oct_\w+\s*\{", text)):
        sys.exit("layout_source.py: the headers hold structs or enums that it cannot read")
    for _, body, name in sorted(structs, key=lambda found: found[2]):
        for field in members(body):
            lines.append(f'    member("{name}.{field}", offsetof({name}, {field}), sizeof(((const {name} *)0)->{field}));\n')
        lines.append(f'    end_struct("{name}", sizeof({name}));\n')
    for _, body, name in sorted(enums, key=lambda found: found[2]):
        for enumerator in re.findall(r"(?:^|,)\s*(OCT_\w+)", body):
            lines.append(f'    printf("{name} {enumerator} %lld\\n", (long long){enumerator});\n')
    headers = sorted(os.listdir(os.path.join(include, "octavo")))
    for header in headers:
        with open(os.path.join(include, "octavo", header), encoding="utf-8") as file:
            for macro in MACRO.findall(file.read()):
                lines.append(f'    printf("macro {macro} %lld\\n", (long long){macro});\n')
    lines.append("    return n_gaps != 0;\n}\n")
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(lines)


main()
