# What the set-up scripts share: sourced, never run. Each script does one thing, is safe to repeat, and is quick when the
# stamp it left says that nothing it depends on has changed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
setup="$root/tools/setup"
build="$root/build"
script=$(basename "$0")

say()  { printf '%s: %s\n' "$script" "$*"; }
fail() { printf '%s: error: %s\n' "$script" "$*" >&2; exit 1; }

# stamp_key FILE...: one hash of the contents of the files and of standard input.
stamp_key() { cat - "$@" | sha256sum | cut -d' ' -f1; }

# fresh STAMP KEY: the stamp's first line is the key.
fresh() { [ -f "$1" ] && [ "$(head -n1 "$1")" = "$2" ]; }

# write_stamp STAMP KEY [LINE...]: atomically, so that an interrupted set-up leaves no stamp.
write_stamp() { local stamp=$1; shift; printf '%s\n' "$@" >"$stamp.part"; mv "$stamp.part" "$stamp"; }

# One set-up at a time: a second one waits, then finds everything done.
mkdir -p "$build"
exec 9>"$build/.$script.lock"
flock 9

# python: the newest interpreter that can make the private environment.
find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "needs Python 3.11 or newer, found: $(python3 --version 2>&1 || echo none)"
}

# pip_download DIRECTORY REQUIREMENTS ARG...: hash-checked files into DIRECTORY; says what failed.
pip_download() {
  local directory=$1 requirements=$2
  shift 2
  mkdir -p "$directory"
  "$build/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
      --dest "$directory" "$@" -r "$requirements" ||
    fail "could not download what $requirements lists (is a Python package index reachable? the hash must match, too)"
}
