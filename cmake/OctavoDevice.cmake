# Code for GPUs from src/device: which compilers there are, a rule a chip, and how it becomes part of the library. A machine without the compilers
# builds everything else.
#   octavo_sm_90a.cubin, octavo_sm_80.ptx    by nvcc 13 (OCTAVO_NVCC); the library embeds them packed, as octavo_sm_90a.fatbin and octavo_sm_80.fatbin
#   octavo_gfx942.co, octavo_gfx950.co       by clang 22 (OCTAVO_ZIG; tools/setup/zig.sh fetches it)
# The target device_code makes all of them; OCTAVO_DEVICE_CODE lists them. The library embeds them (octavo_embed) with ON, which costs minutes; with
# AUTO it embeds what OCTAVO_DEVICE_FROM has, so that of several builds one compiles. FOUND (Python wheels) is ON for the compilers that there are, or
# AUTO where OCTAVO_DEVICE_FROM is given or there is none. A library without them opens no GPU and says why.
set(OCTAVO_DEVICE AUTO CACHE STRING
  "Code for GPUs: ON (compile and embed all of it; both compilers must be there), FOUND (the same, for the compilers that there are), OFF, or AUTO (embed what OCTAVO_DEVICE_FROM has; the target device_code compiles)")
set_property(CACHE OCTAVO_DEVICE PROPERTY STRINGS AUTO FOUND ON OFF)
set(OCTAVO_DEVICE_FROM "" CACHE PATH "A folder of code for GPUs that another build made (its folder device), to be embedded as it is")
find_program(OCTAVO_NVCC nvcc HINTS /usr/local/cuda/bin DOC "NVIDIA's compiler, 13 or newer")
find_program(OCTAVO_ZIG zig HINTS "${PROJECT_SOURCE_DIR}/build/deps/zig" NO_DEFAULT_PATH DOC "The zig of the wheel ziglang 0.17.0, for its clang and lld")

# What is too old is not found.
if(OCTAVO_DEVICE STREQUAL "FOUND" AND OCTAVO_NVCC)
  execute_process(COMMAND "${OCTAVO_NVCC}" --version OUTPUT_VARIABLE octavo_nvcc_says ERROR_QUIET)
  if(NOT octavo_nvcc_says MATCHES "release ([0-9]+)" OR CMAKE_MATCH_1 LESS 13)
    message(STATUS "No code for NVIDIA's GPUs: ${OCTAVO_NVCC} is not nvcc 13 or newer")
    set(OCTAVO_NVCC OCTAVO_NVCC-NOTFOUND)   # of this run; the cache stays
  endif()
endif()

# What the cache says may stay as it is while compilers come and go.
set(octavo_device_mode "${OCTAVO_DEVICE}")
if(OCTAVO_DEVICE STREQUAL "FOUND")
  if(NOT OCTAVO_DEVICE_FROM AND (OCTAVO_NVCC OR OCTAVO_ZIG))
    set(octavo_device_mode ON)
  else()
    set(octavo_device_mode AUTO)
  endif()
endif()

set(OCTAVO_DEVICE_CODE "")
if(NOT OCTAVO_DEVICE STREQUAL "OFF")
  if(OCTAVO_DEVICE STREQUAL "ON")   # all of it
    if(NOT OCTAVO_NVCC)
      message(FATAL_ERROR "OCTAVO_DEVICE=ON: no nvcc (set OCTAVO_NVCC)")
    elseif(NOT OCTAVO_ZIG)
      message(FATAL_ERROR "OCTAVO_DEVICE=ON: no clang for AMD (run tools/setup/zig.sh, or set OCTAVO_ZIG)")
    endif()
  endif()
  set(octavo_device_dir "${PROJECT_BINARY_DIR}/device")
  file(MAKE_DIRECTORY "${octavo_device_dir}")

  # All that a text may include; zig's clang writes no list of dependencies.
  file(GLOB octavo_device_texts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/device/*.h" "${PROJECT_SOURCE_DIR}/src/device/*.def"
    "${PROJECT_SOURCE_DIR}/src/device/kernels.c" "${PROJECT_SOURCE_DIR}/src/cuda/*.h" "${PROJECT_SOURCE_DIR}/src/cuda/*_sm90a.c"
    "${PROJECT_SOURCE_DIR}/src/cuda/*_sm90a.def" "${PROJECT_SOURCE_DIR}/src/number/*.h" "${PROJECT_SOURCE_DIR}/include/octavo/*.h")

  # Half of all the work is the object for sm_90a: the others take turns beside it, or it would begin when they have ended and then run alone.
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS octavo_device=1)

  # octavo_device_rule(kind arch compiler extension [words of add_custom_command...])
  function(octavo_device_rule kind arch compiler extension)
    set(out "${octavo_device_dir}/octavo_${arch}.${extension}")
    set(embedded "${out}")
    if(NOT kind STREQUAL "amdgpu")
      set(embedded "${octavo_device_dir}/octavo_${arch}.fatbin")
    endif()
    set(outputs "${out}" "${embedded}")
    list(REMOVE_DUPLICATES outputs)
    add_custom_command(OUTPUT ${outputs}
      COMMAND "${CMAKE_COMMAND}" -DKIND=${kind} -DARCH=${arch} "-DCOMPILER=${compiler}" "-DROOT=${PROJECT_SOURCE_DIR}" "-DOUT=${out}"
        -P "${PROJECT_SOURCE_DIR}/cmake/device_compile.cmake"
      DEPENDS ${octavo_device_texts} "${PROJECT_SOURCE_DIR}/cmake/device_compile.cmake" "${PROJECT_SOURCE_DIR}/cmake/device_instructions.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/device_report.cmake"
      COMMENT "Compiling kernels for ${arch}" VERBATIM ${ARGN})
    set(OCTAVO_DEVICE_CODE ${OCTAVO_DEVICE_CODE} "${embedded}" PARENT_SCOPE)
  endfunction()

  if(OCTAVO_NVCC)
    octavo_device_rule(cubin sm_90a "${OCTAVO_NVCC}" cubin)
    octavo_device_rule(ptx sm_80 "${OCTAVO_NVCC}" ptx JOB_POOL octavo_device)
  endif()
  if(OCTAVO_ZIG)
    octavo_device_rule(amdgpu gfx942 "${OCTAVO_ZIG}" co JOB_POOL octavo_device)
    octavo_device_rule(amdgpu gfx950 "${OCTAVO_ZIG}" co JOB_POOL octavo_device)
  endif()
  if(octavo_device_mode STREQUAL "ON")
    add_custom_target(device_code ALL DEPENDS ${OCTAVO_DEVICE_CODE})
  else()
    add_custom_target(device_code DEPENDS ${OCTAVO_DEVICE_CODE})
  endif()
endif()

# OCTAVO_DEVICE_EMBEDDED: the files that become part of the library.
set(OCTAVO_DEVICE_EMBEDDED "")
if(octavo_device_mode STREQUAL "ON")
  set(OCTAVO_DEVICE_EMBEDDED ${OCTAVO_DEVICE_CODE})
elseif(octavo_device_mode STREQUAL "AUTO" AND OCTAVO_DEVICE_FROM)
  file(GLOB OCTAVO_DEVICE_EMBEDDED "${OCTAVO_DEVICE_FROM}/octavo_*.fatbin" "${OCTAVO_DEVICE_FROM}/octavo_*.co")
  if(NOT OCTAVO_DEVICE_EMBEDDED)
    message(FATAL_ERROR "OCTAVO_DEVICE_FROM: no code for GPUs in ${OCTAVO_DEVICE_FROM}")
  endif()
  # A folder whose code nobody has packed would embed AMD's alone.
  file(GLOB octavo_device_loose "${OCTAVO_DEVICE_FROM}/octavo_*.cubin" "${OCTAVO_DEVICE_FROM}/octavo_*.ptx")
  foreach(file IN LISTS octavo_device_loose)
    get_filename_component(name "${file}" NAME_WE)
    if(NOT EXISTS "${OCTAVO_DEVICE_FROM}/${name}.fatbin")
      message(FATAL_ERROR "OCTAVO_DEVICE_FROM: ${file} has no ${name}.fatbin beside it; build device_code there again")
    endif()
  endforeach()
endif()

# octavo_embed(target source): tells the source where each file lies (OCT__CODE_<arch>), and the build that it must be there first.
function(octavo_embed target source)
  foreach(file IN LISTS OCTAVO_DEVICE_EMBEDDED)
    get_filename_component(arch "${file}" NAME_WE)
    string(REPLACE "octavo_" "OCT__CODE_" arch "${arch}")
    string(TOUPPER "${arch}" arch)
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_DEFINITIONS "${arch}=\"${file}\"")
    set_property(SOURCE "${source}" TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS "${file}")
  endforeach()
  if(octavo_device_mode STREQUAL "ON")
    add_dependencies(${target} device_code)
  endif()
endfunction()
