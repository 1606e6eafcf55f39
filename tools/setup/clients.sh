#!/usr/bin/env bash
# Makes build/clients, a Python of its own with the pinned wheels of requirements-clients.txt: the clients of the tests serve_openai and serve_schema.
source "$(dirname "$0")/lib.sh"

python=$(find_python)
key=$({ "$python" -c 'import sys; print(sys.version, sys.executable)'; echo "$build/clients"; } | stamp_key "$setup/requirements-clients.txt")
stamp="$build/clients/.stamp"
[ -x "$build/venv/bin/python" ] || fail "there is no build/venv; run tools/setup/venv.sh first"
fresh "$stamp" "$key" && exit 0

say "making build/clients with $("$python" --version)"
rm -rf "$build/clients"
"$python" -m venv "$build/clients" || fail "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
# Compiled when imported: compiling everything takes longer than the tests.
"$build/clients/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes --only-binary :all: \
    -r "$setup/requirements-clients.txt" || fail "could not install what tools/setup/requirements-clients.txt lists (is a Python package index reachable?)"
# The tests' own NumPy, from the private environment beside it.
"$build/clients/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' |
  { read -r own; echo "${own/#$build\/clients/$build/venv}" >"$own/octavo.pth"; }
write_stamp "$stamp" "$key"
