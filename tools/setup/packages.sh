#!/usr/bin/env bash
# Installs the Debian packages of packages.txt that are missing. Calls apt only then, so it needs root only then.
source "$(dirname "$0")/lib.sh"

mapfile -t wanted < <(grep -v '^#' "$setup/packages.txt")
missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

command -v apt-get >/dev/null || fail "these packages are missing and there is no apt-get to install them: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "run as root once, or install by hand: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
say "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq || fail "apt-get update failed; the list of packages could not be read"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$build/packages.log" 2>&1 ||
  { tail -n 20 "$build/packages.log" >&2; fail "apt-get install failed for: ${missing[*]} (log: build/packages.log)"; }
