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
set(octavo_isa_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16)
function(octavo_isa level target)
  if(NOT DEFINED octavo_isa_${level})
    message(FATAL_ERROR "octavo_isa: no instruction set level '${level}'")
  endif()
  if(NOT ARGN)
    message(FATAL_ERROR "octavo_isa(${level} ${target}): no sources")
  endif()
  # Source properties belong to a directory; TARGET_DIRECTORY sets them where the target was made.
  foreach(source IN LISTS ARGN)
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS ${octavo_isa_${level}})
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
  add_executable(${T_NAME} ${T_SOURCES})
  octavo_defaults(${T_NAME})
  target_include_directories(${T_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${T_NAME} PRIVATE ${T_LINK} octavo_static ${OCTAVO_CMOCKA})
  if(T_ENGINE)
    target_link_libraries(${T_NAME} PRIVATE octavo_engine)
  endif()
  add_test(NAME ${T_NAME} COMMAND ${T_NAME} ${T_ARGS})
  # 77 is the field's exit status for "skipped"; the run counts and names it.
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# octavo_keep_linkable(target): a library whose rooms are still empty gets one empty unit, since CMake refuses a target
# without sources.
function(octavo_keep_linkable target)
  set(empty "${CMAKE_BINARY_DIR}/empty.c")
  if(NOT EXISTS "${empty}")
    file(WRITE "${empty}" "extern int oct__empty_unit;\n")
  endif()
  get_target_property(sources ${target} SOURCES)
  if(NOT sources)
    target_sources(${target} PRIVATE "${empty}")
  endif()
endfunction()
