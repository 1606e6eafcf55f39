#!/usr/bin/env bash
# Unpacks clang and lld 22 into build/deps/zig (411 MB): the compiler of the AMD code objects. Needs build/venv for pip.
source "$(dirname "$0")/lib.sh"

main() {
  prefix="$build/deps/zig"
  stamp="$prefix/.stamp"
  key=$(echo "$prefix" | stamp_key "$setup/zig.txt")
  fresh "$stamp" "$key" && exit 0
  [ -x "$build/venv/bin/python" ] || fail "build/venv is missing; run tools/setup/venv.sh first"

  work="$build/deps/zig-wheel"
  rm -rf "$work" "$prefix"
  mkdir -p "$work"
  say "fetching ziglang"
  pip_download "$work" "$setup/zig.txt" --only-binary :all:
  "$build/venv/bin/python" -m zipfile -e "$work"/ziglang-*.whl "$work/out" || fail "the wheel cannot be unpacked (is the disk full?)"
  chmod +x "$work/out/ziglang/zig"
  "$work/out/ziglang/zig" clang --version >/dev/null || fail "the unpacked compiler does not start on this machine"
  mv "$work/out/ziglang" "$prefix"
  rm -rf "$work"
  write_stamp "$stamp" "$key"
}

main "$@"
