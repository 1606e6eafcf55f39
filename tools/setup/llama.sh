#!/usr/bin/env bash
# Builds ggml and libllama into build/deps/llama, unless CMake or pkg-config find them installed already, and beside them llama-jinja:
# what llama.cpp renders chat templates and turns JSON Schemas into grammars with. An installed libllama comes without it: llama.cpp
# installs neither that part of its library `common` nor its headers, and the whole of `common` takes minutes more and a HTTP client.
#   llama.sh         build when the stamp does not match
#   llama.sh --key   print the stamp that matches this machine and these sources
# The build is tuned to this CPU (GGML_NATIVE), and its programs crash on a CPU that lacks an instruction; so the stamp holds
# what the compiler resolves "native" to, and another CPU or compiler rebuilds.
source "$(dirname "$0")/lib.sh"

# The sources of common/ as they are, into lib/libllama-jinja.a and include/llama-jinja.
build_jinja() {
  local common="$source_tree/common" objects="$work/jinja" function header
  mkdir -p "$objects" "$work/out/include/llama-jinja/jinja"
  {
    echo '#include "common.h"'
    for function in "${jinja_functions[@]}"; do
      grep -q "^std::.* $function(const std::[^;]*{$" "$common/common.cpp" || { echo "common.cpp has no $function" >&2; return 1; }
      sed -n "/^std::.* $function(const std::/,/^}/p" "$common/common.cpp"
    done
  } >"$objects/strings.cpp"
  # The longest first, as many at once as there are cores.
  printf '%s\n' "${jinja_sources[@]/#/$common/}" "$objects/strings.cpp" |
    xargs -P"$(nproc)" -I{} sh -c 'source=$1 to=$2/$(basename "$1" .cpp).o; shift 2; exec c++ "$@" -c "$source" -o "$to"' - {} "$objects" \
      "${jinja_flags[@]}" -I"$common" -I"$source_tree/include" -I"$source_tree/ggml/include" -I"$source_tree/vendor" || return 1
  ar rcs "$work/out/lib/libllama-jinja.a" "$objects"/*.o || return 1
  for header in json.h json-schema.h json-schema-to-grammar.h jinja/{lexer,parser,runtime,string,utils,value}.h; do
    cp "$common/$header" "$work/out/include/llama-jinja/$header" || return 1
  done
}

# One function, so that the shell has read all of it before minutes of building pass.
main() {
  prefix="$build/deps/llama"
  stamp="$prefix/.stamp"
  flags=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DGGML_OPENMP=OFF
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF)
  # Of common/; of its common.cpp, which needs all of the rest, three functions on texts.
  jinja_sources=(json.cpp jinja/value.cpp json-schema-to-grammar.cpp jinja/runtime.cpp jinja/parser.cpp json-schema.cpp jinja/lexer.cpp
    jinja/string.cpp unicode.cpp trie.cpp)
  jinja_functions=(string_join string_split string_repeat)
  jinja_flags=(-std=c++17 -O2 -fPIC -DNDEBUG -w)

  command -v cc >/dev/null || fail "no C compiler (cc); run tools/setup/packages.sh first"
  native=$(cc -march=native -dM -E -x c /dev/null | LC_ALL=C sort)
  key=$(printf '%s\n' "${flags[@]}" "${jinja_sources[@]}" "${jinja_functions[@]}" "${jinja_flags[@]}" "$native" | stamp_key "$setup/llama.txt")
  cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n1)
  isa=$(sed -nE 's/^#define __(SSE4_2|AVX[A-Z0-9_]*|FMA|F16C|BMI2?|AMX[A-Z0-9_]*)__ 1$/\1/p' <<<"$native" | tr '\n' ' ')
  lines=("$key" "cpu: $cpu" "isa: $isa" "cc: $(cc --version | head -n1)" "flags: ${flags[*]}")
  if [ "${1:-}" = --key ]; then
    printf '%s\n' "${lines[@]}"
    exit 0
  fi
  fresh "$stamp" "$key" && exit 0

  # Installed for everybody? Then nothing is built, and the root CMakeLists.txt finds the same.
  probe="$build/deps/probe"
  rm -rf "$probe"
  mkdir -p "$probe"
  cat >"$probe/CMakeLists.txt" <<'P'
cmake_minimum_required(VERSION 3.25)
project(probe C CXX)
find_package(llama CONFIG QUIET)
if(NOT TARGET llama)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(llama REQUIRED llama)
endif()
P
  if cmake -S "$probe" -B "$probe/b" >/dev/null 2>&1; then
    say "ggml and llama are installed on this machine; not building them (without llama-jinja: doc/SERVING.md says what that takes away)"
    exit 0
  fi

  if [ -f "$stamp" ]; then
    say "rebuilding ggml and libllama: the CPU, the compiler or the sources changed since the build of $(sed -n 's/^cpu: //p' "$stamp")"
  fi
  work="$build/deps/llama-build"
  rm -rf "$work"
  mkdir -p "$work"
  say "fetching the source of ggml and libllama"
  pip_download "$work" "$setup/llama.txt" --no-binary llama-cpp-python
  tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" || fail "the source archive cannot be unpacked (is the disk full?)"
  source_tree=$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)
  say "building ggml and libllama for $cpu (about 3 minutes on two cores)"
  { cmake -S "$source_tree" -B "$work/b" -G Ninja "${flags[@]}" -DCMAKE_INSTALL_PREFIX="$work/out" &&
    cmake --build "$work/b" -j"$(nproc)" && cmake --install "$work/b"; } >"$build/llama.log" 2>&1 ||
    { tail -n 20 "$build/llama.log" >&2; fail "the build of ggml and libllama failed (log: build/llama.log)"; }
  build_jinja >>"$build/llama.log" 2>&1 || { tail -n 20 "$build/llama.log" >&2; fail "the build of llama-jinja failed (log: build/llama.log)"; }
  # The CMake package is relocatable; the pkg-config file is not.
  sed -i "s#$work/out#$prefix#g" "$work"/out/lib/pkgconfig/*.pc
  rm -rf "$prefix"
  mv "$work/out" "$prefix"
  write_stamp "$stamp" "${lines[@]}"
  rm -rf "$work" "$probe"
}

main "$@"
