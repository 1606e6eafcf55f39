# The functions that a room's CMakeLists.txt calls.

# octavo_defaults(target): language, warnings, code generation and instrumentation, the same for every target here.
# _POSIX_C_SOURCE opens POSIX under strict C17; a file that needs more defines _GNU_SOURCE in its first lines.
function(octavo_defaults target)
  set_target_properties(${target} PROPERTIES C_STANDARD 17 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_definitions(${target} PRIVATE _POSIX_C_SOURCE=200809L)
  target_compile_options(${target} PRIVATE ${octavo_warnings} ${octavo_codegen} ${octavo_instrument_compile})
  target_link_options(${target} PRIVATE ${octavo_instrument_link})
endfunction()

# octavo_isa(LEVEL target source...): these sources of `target` may use the instructions of LEVEL. Everything else is
# plain x86-64, so that the program starts on any machine and the probe decides.
set(octavo_isa_avx2 -mavx2 -mfma -mf16c)
# Only what the rows' gates ask for: without DQ, which no fact speaks of.
set(octavo_isa_avx512 -mavx512f -mavx512bw -mavx512vl)
set(octavo_isa_avx512vbmi ${octavo_isa_avx512} -mavx512vbmi)
set(octavo_isa_avx512bf16 ${octavo_isa_avx512vbmi} -mavx512bf16)
set(octavo_isa_avx512vnni ${octavo_isa_avx512vbmi} -mavx512vnni)
set(octavo_isa_amxbf16 ${octavo_isa_avx512bf16} -mamx-tile -mamx-bf16)
# Kernels begin at a line and their loops at half a line, wherever the link puts them: costs are fitted to them, and where a product's loop fell across
# lines it lost up to a fifth whenever another file had grown.
set(octavo_isa_align -falign-functions=64 -falign-loops=32)
function(octavo_isa level target)
  if(NOT DEFINED octavo_isa_${level})
    message(FATAL_ERROR "octavo_isa: no instruction set level '${level}'")
  endif()
  if(NOT ARGN)
    message(FATAL_ERROR "octavo_isa(${level} ${target}): no sources")
  endif()
  # Source properties belong to a directory; TARGET_DIRECTORY sets them where the target was made.
  foreach(source IN LISTS ARGN)
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS ${octavo_isa_${level}} ${octavo_isa_align})
  endforeach()
endfunction()

# octavo_test(NAME n SOURCES ... LABELS fast|slow [TIMEOUT seconds] [ARGS ...] [LINK ...] [ENGINE])
# A cmocka program linked with octavo_static, so that it reaches the oct__ names; ENGINE links octavo_engine too and
# drops the test from builds without it.
function(octavo_test)
  cmake_parse_arguments(T "ENGINE" "NAME;TIMEOUT" "SOURCES;LABELS;ARGS;LINK" ${ARGN})
  if(T_UNPARSED_ARGUMENTS OR NOT T_NAME OR NOT T_SOURCES OR NOT T_LABELS)
    message(FATAL_ERROR "octavo_test: wants NAME, SOURCES and LABELS (got: ${ARGN})")
  endif()
  foreach(label IN LISTS T_LABELS)
    if(NOT label MATCHES "^(fast|slow)$")
      message(FATAL_ERROR "octavo_test(${T_NAME}): label '${label}' is neither fast nor slow")
    endif()
  endforeach()
  if(T_ENGINE AND NOT TARGET octavo_engine)
    return()
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  octavo_test_program(${T_NAME} "${T_ENGINE}" SOURCES ${T_SOURCES} LINK ${T_LINK} ${OCTAVO_CMOCKA})
  add_test(NAME ${T_NAME} COMMAND ${T_NAME} ${T_ARGS})
  # 77 is the field's exit status for "skipped"; the run counts and names it.
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${octavo_test_environment}")
endfunction()

# Sanitized programs must see a failed allocation as NULL, as the library promises to handle it.
set(octavo_test_environment
  "ASAN_OPTIONS=allocator_may_return_null=1" "UBSAN_OPTIONS=print_stacktrace=1")

# octavo_test_program(name engine SOURCES ... [LINK ...]): what every test and fuzz program needs.
function(octavo_test_program name engine)
  cmake_parse_arguments(P "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  octavo_defaults(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  if(engine)
    target_link_libraries(${name} PRIVATE octavo_engine)
  endif()
  target_link_libraries(${name} PRIVATE ${P_LINK} octavo_static)
endfunction()

# octavo_fuzz(NAME n SOURCES ... CORPUS folder [MAX_LEN bytes] [ENGINE])
# A libFuzzer program: the sources define LLVMFuzzerTestOneInput, the folder holds first inputs. With OCTAVO_FUZZ it is a
# test with the label fuzz that runs for OCTAVO_FUZZ_SECONDS; without, a fast test that runs every file of the folder
# once, so that what fuzzing found stays mended under every compiler.
function(octavo_fuzz)
  cmake_parse_arguments(F "ENGINE" "NAME;CORPUS;MAX_LEN" "SOURCES" ${ARGN})
  if(F_UNPARSED_ARGUMENTS OR NOT F_NAME OR NOT F_SOURCES OR NOT F_CORPUS)
    message(FATAL_ERROR "octavo_fuzz: wants NAME, SOURCES and CORPUS (got: ${ARGN})")
  endif()
  if(F_ENGINE AND NOT TARGET octavo_engine)
    return()
  endif()
  if(NOT F_MAX_LEN)
    set(F_MAX_LEN 65536)
  endif()
  get_filename_component(corpus "${F_CORPUS}" ABSOLUTE)
  if(OCTAVO_FUZZ)
    octavo_test_program(${F_NAME} "${F_ENGINE}" SOURCES ${F_SOURCES})
    target_link_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
    set(found "${CMAKE_CURRENT_BINARY_DIR}/${F_NAME}.found")
    file(MAKE_DIRECTORY "${found}")
    add_test(NAME ${F_NAME} COMMAND ${F_NAME} -max_total_time=${OCTAVO_FUZZ_SECONDS} -max_len=${F_MAX_LEN} -timeout=10
      -rss_limit_mb=1024 -print_final_stats=1 "-artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${F_NAME}-" "${found}" "${corpus}")
    math(EXPR limit "${OCTAVO_FUZZ_SECONDS} + 60")
    set_tests_properties(${F_NAME} PROPERTIES LABELS fuzz TIMEOUT ${limit} ENVIRONMENT "${octavo_test_environment}")
  else()
    octavo_test_program(${F_NAME} "${F_ENGINE}" SOURCES ${F_SOURCES} "${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c")
    add_test(NAME ${F_NAME} COMMAND ${F_NAME} "${corpus}")
    set_tests_properties(${F_NAME} PROPERTIES LABELS fast TIMEOUT 60 ENVIRONMENT "${octavo_test_environment}")
  endif()
endfunction()
