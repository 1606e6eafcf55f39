#!/usr/bin/env python3
"""The layering law: which room may include what. Reads every #include line and fails with file:line.

usage: layering.py [REPOSITORY_ROOT]
"""
import os
import re
import sys

# Room -> what it may include besides itself and include/octavo. An entry is a room, one file of a room, or room/*.def.
LAW = {
    "include": [],
    "host": [],
    "number": [],
    "kv": ["host", "number"],
    "plan": ["host", "number", "kv/layout.h", "cpu/variants.def", "cuda/variants.def", "hip/variants.def"],
    "device": ["plan/variant.h", "kv/layout.h", "number", "host"],
    "cpu": ["plan/variant.h", "plan/work.h", "kv/layout.h", "number", "host"],
    "cuda": ["plan/variant.h", "kv/layout.h", "number", "host", "device"],
    "hip": ["plan/variant.h", "kv/layout.h", "number", "host", "device"],
    "api": ["host", "number", "kv", "plan", "cpu", "cuda", "hip", "device"],
    "engine": ["host"],
    "apps": ["engine", "host"],
    "bindings": [],
}

ISO_C = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype""".split()
SYSTEM = """pthread unistd fcntl sched dlfcn poll termios strings dirent sys/mman sys/stat sys/types sys/time sys/resource
    sys/sysinfo sys/ioctl sys/prctl sys/wait sys/auxv sys/syscall linux/futex""".split()
INSTRUCTIONS = "immintrin x86intrin cpuid".split()
# The only room of C++, which reaches the library through its public headers.
CXX = """atomic chrono cmath cstdarg cstdint cstdio cstdlib cstring initializer_list memory mutex optional string vector""".split()
MATRICES = re.compile(r"(ggml(-[a-z]+)?|gguf|llama|jansson)\.h$")

# Room -> groups of <headers>. The OS is met in host; instructions in cpu; ggml, llama and jansson in the engine.
SYSTEM_ROOMS = {"host", "engine", "apps", "bindings"}
INSTRUCTION_ROOMS = {"cpu", "host"}
MATRIX_ROOMS = {"engine"}
# The server speaks JSON and HTTP, `bench serve` is its client; what they say of models they ask the engine for.
SERVER = re.compile(r"(jansson|microhttpd|curl/curl|netdb|arpa/inet|netinet/in|sys/socket)\.h$")
SERVER_ROOMS = {"apps"}
# The engine's process with limits: a pair of sockets, and the one file of C++ that llama.cpp's Jinja and its grammars are met in.
SANDBOX = {"engine/sandbox.c": ["sys/socket.h"], "engine/sandbox_jobs.cpp": "cstring new jinja/lexer.h jinja/parser.h jinja/runtime.h json-schema-to-grammar.h json.h".split()}

SOURCES = (".c", ".h", ".def", ".cc", ".cpp", ".cu", ".hip", ".inc")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(.*)$', re.M)


def room_of(path):
    parts = path.split("/")
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else "src"
    return parts[0]


def without_comments(text):
    """Comments become blanks of the same lines, strings stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)

    def blank(match):
        piece = match.group(0)
        return piece if piece[0] == '"' else "\n" * piece.count("\n")

    return pattern.sub(blank, text)


def resolve(root, path, name):
    """The file that an #include "name" in `path` means, relative to root, or None."""
    for base in (os.path.dirname(path), "src", "include", ""):
        candidate = os.path.normpath(os.path.join(base, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate.replace(os.sep, "/")
    return None


def system_complaint(room, name, path):
    stem = name[:-2] if name.endswith(".h") else name
    if name in SANDBOX.get(path, []):
        return None
    if room == "bindings" and (stem in CXX or stem.startswith("nanobind/")):
        return None
    if stem in ISO_C:
        return None
    if stem in SYSTEM:
        return None if room in SYSTEM_ROOMS else f"the operating system is met in src/host only (<{name}>)"
    if stem in INSTRUCTIONS:
        return None if room in INSTRUCTION_ROOMS else f"instructions are named in src/cpu only (<{name}>)"
    if SERVER.match(name) and room in SERVER_ROOMS:
        return None
    if MATRICES.match(name):
        return None if room in MATRIX_ROOMS else f"ggml, llama and jansson are met in engine only (<{name}>)"
    return f"<{name}> is in no list of tools/check/layering.py"


def complaint(root, path, argument):
    """Why the include is against the law, or None."""
    room = room_of(path)
    if room not in LAW:
        return f"room '{room}' is not in the law (tools/check/layering.py)"
    match = re.match(r'"([^"]+)"|<([^>]+)>', argument)
    if not match:
        return f"the include cannot be read: {argument}"
    quoted, angled = match.groups()
    name = quoted or angled
    target = resolve(root, path, name) if quoted or name.startswith("octavo/") else None
    if target is None:
        # ggml's own headers are written with quotes as often as with brackets.
        if angled or MATRICES.match(name) or name in SANDBOX.get(path, []):
            return system_complaint(room, name, path)
        return f'"{name}" is not a file of this repository'
    there = room_of(target)
    if there == room or target.startswith("include/octavo/"):
        return None
    inside = target[len("src/"):] if target.startswith("src/") else target
    for entry in LAW[room]:
        if inside == entry or ("." not in entry and inside.startswith(entry + "/")):
            return None
    return f"{room} may not include {inside}"


def check(root):
    complaints = []
    n_files = n_includes = 0
    for top in ("include", "src", "engine", "apps", "bindings"):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for file_name in sorted(names):
                if not file_name.endswith(SOURCES):
                    continue
                full = os.path.join(folder, file_name)
                path = os.path.relpath(full, root).replace(os.sep, "/")
                with open(full, encoding="utf-8") as file:
                    text = without_comments(file.read())
                n_files += 1
                for match in INCLUDE.finditer(text):
                    n_includes += 1
                    why = complaint(root, path, match.group(1).strip())
                    if why:
                        line = text.count("\n", 0, match.start()) + 1
                        complaints.append(f"{path}:{line}: {why}")
    return complaints, n_files, n_includes


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(here))
    complaints, n_files, n_includes = check(root)
    for line in complaints:
        print(line)
    if n_files == 0:
        sys.exit(f"layering: no sources under {root}")
    print(f"layering: {n_includes} includes of {n_files} files, {len(complaints)} against the law")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
