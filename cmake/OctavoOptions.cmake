# What a person may choose when configuring, and the flags that follow from it.
set(OCTAVO_ENGINE AUTO CACHE STRING "Build engine and command line: ON (ggml and llama must be there), OFF, or AUTO (if they are)")
set_property(CACHE OCTAVO_ENGINE PROPERTY STRINGS AUTO ON OFF)
set(OCTAVO_SANITIZE "" CACHE STRING "Sanitizers for everything built here: empty, 'address,undefined' or 'thread'")
set_property(CACHE OCTAVO_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")
option(OCTAVO_PYTHON_PACKAGE "Build the extension module of the Python package (bindings/python); needs nanobind in Python_EXECUTABLE" OFF)
option(OCTAVO_FUZZ "Build the fuzz targets with libFuzzer (clang only; brings the address sanitizer)" OFF)
set(OCTAVO_FUZZ_SECONDS 60 CACHE STRING "How long each fuzz target runs as a test")
set(OCTAVO_TESTS all CACHE STRING "Folders of tests/ to build, as a list; all by default")
option(OCTAVO_WERROR "Warnings are errors" ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

set(octavo_warnings -Wall -Wextra -Wpedantic)
if(OCTAVO_WERROR)
  list(APPEND octavo_warnings -Werror)
endif()

# No contraction: a*b+c rounds twice everywhere unless a source says fma, so that compilers and ISA levels agree on bits.
set(octavo_codegen -ffp-contract=off -fvisibility=hidden -fno-math-errno)

# libFuzzer's coverage calls are answered by the address sanitizer's runtime in programs that are not fuzz targets.
if(OCTAVO_FUZZ AND NOT OCTAVO_SANITIZE MATCHES "address")
  set(OCTAVO_SANITIZE "address,undefined")
endif()

set(octavo_instrument_compile "")
set(octavo_instrument_link "")
if(OCTAVO_SANITIZE)
  # -O1: with -O2, clang 14 needs minutes for the instrumented AVX2 kernels, where all formats are inlined into one function.
  list(APPEND octavo_instrument_compile "-fsanitize=${OCTAVO_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g)
  list(APPEND octavo_instrument_link "-fsanitize=${OCTAVO_SANITIZE}")
endif()
if(OCTAVO_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OCTAVO_FUZZ needs clang (libFuzzer); configure with -DCMAKE_C_COMPILER=clang-14")
  endif()
  list(APPEND octavo_instrument_compile -fsanitize=fuzzer-no-link)
endif()
