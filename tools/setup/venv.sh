#!/usr/bin/env bash
# Makes build/venv, the private Python environment, with the pinned wheels of requirements.txt.
source "$(dirname "$0")/lib.sh"

python=$(find_python)
key=$({ "$python" -c 'import sys; print(sys.version, sys.executable)'; echo "$build/venv"; } | stamp_key "$setup/requirements.txt")
stamp="$build/venv/.stamp"
fresh "$stamp" "$key" && exit 0

say "making build/venv with $("$python" --version)"
rm -rf "$build/venv"
"$python" -m venv "$build/venv" || fail "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
"$build/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    -r "$setup/requirements.txt" || fail "could not install what tools/setup/requirements.txt lists (is a Python package index reachable?)"
write_stamp "$stamp" "$key"
