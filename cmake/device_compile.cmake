# Compiles src/device/kernels.c for one chip and holds the compiler's report to device_report.cmake. Run by the rules of OctavoDevice.cmake:
#   cmake -DKIND=cubin|ptx|amdgpu -DARCH=sm_90a -DCOMPILER=... -DROOT=source -DOUT=file -P device_compile.cmake
# All flags stand here. No contraction: a fused multiply-add stands where a text says so, and writes give the same bytes everywhere.
include("${CMAKE_CURRENT_LIST_DIR}/device_report.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/device_instructions.cmake")

set(source "${ROOT}/src/device/kernels.c")
if(ARCH STREQUAL "sm_90a")
  set(source "${ROOT}/src/cuda/kernels_sm90a.c")   # those of every GPU, and Hopper's own
endif()
set(include "-I${ROOT}/src" "-I${ROOT}/include")

# run(log command...): output into the log; a failure shows it.
function(run log)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE "${log}" ERROR_FILE "${log}" RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    file(READ "${log}" text)
    string(SUBSTRING "${text}" 0 4000 text)
    file(REMOVE "${OUT}")
    message(FATAL_ERROR "${ARGN}\nfailed (${status}):\n${text}")
  endif()
endfunction()

# pack(kind sm file): octavo_<arch>.fatbin beside OUT, the form that the library embeds: the driver unpacks it (zstd, a tenth of the size) when it loads it.
function(pack kind sm file)
  get_filename_component(bin "${COMPILER}" REALPATH)
  get_filename_component(bin "${bin}" DIRECTORY)
  string(REGEX REPLACE "\\.[a-z]+$" ".fatbin" packed "${OUT}")
  run("${OUT}.pack.log" "${bin}/fatbinary" -64 "--create=${packed}.part" --compress-all --compress-mode=size "--image3=kind=${kind},sm=${sm},file=${file}")
  file(RENAME "${packed}.part" "${packed}")
endfunction()

# A file appears under its name only once it has passed.
set(made "${OUT}.part")
if(KIND STREQUAL "cubin")
  string(REPLACE "sm_" "compute_" virtual "${ARCH}")
  get_filename_component(bin "${COMPILER}" REALPATH)
  get_filename_component(bin "${bin}" DIRECTORY)
  run("${OUT}.log" "${COMPILER}" -x cu -std=c++17 -O3 -fmad=false "-arch=${virtual}" -ptx ${include} "${source}" -o "${OUT}.ptx")
  device_instructions(ptx ${ARCH} "${OUT}.ptx" "${ROOT}/src/device/kernels.def")
  run("${OUT}.log" "${bin}/ptxas" "-arch=${ARCH}" -O3 -v "${OUT}.ptx" -o "${made}")
  file(REMOVE "${OUT}.ptx")
  if(ARCH STREQUAL "sm_90a")
    device_report(ptxas "${OUT}.log" "${ROOT}/src/cuda/kernels_sm90a.def" 49152)
    file(RENAME "${OUT}.log.summary" "${OUT}.log.summary.own")
  endif()
  device_report(ptxas "${OUT}.log" "${ROOT}/src/device/kernels.def" 49152)
  string(REPLACE "sm_" "" sm "${ARCH}")
  pack(elf "${sm}" "${made}")
elseif(KIND STREQUAL "ptx")
  # The driver compiles it on newer chips; here the assembler does, for the oldest one, so that no user is the first to see an error.
  string(REPLACE "sm_" "compute_" virtual "${ARCH}")
  run("${OUT}.log" "${COMPILER}" -x cu -std=c++17 -O3 -fmad=false "-arch=${virtual}" -ptx ${include} "${source}" -o "${made}")
  get_filename_component(bin "${COMPILER}" REALPATH)
  get_filename_component(bin "${bin}" DIRECTORY)
  device_instructions(ptx ${ARCH} "${made}" "${ROOT}/src/device/kernels.def")
  run("${OUT}.log" "${bin}/ptxas" "-arch=${ARCH}" -O3 -v "${made}" -o "${OUT}.cubin")
  file(REMOVE "${OUT}.cubin")
  device_report(ptxas "${OUT}.log" "${ROOT}/src/device/kernels.def" 49152)
  string(REPLACE "sm_" "" sm "${ARCH}")
  pack(ptx "${sm}" "${made}")
else()
  get_filename_component(zig "${COMPILER}" DIRECTORY)
  # By way of assembly: with -c, clang -x hip calls whatever lld the system has. The assembly also is what the tests' simulator reads.
  run("${OUT}.log" "${COMPILER}" clang -x hip --cuda-device-only "--offload-arch=${ARCH}" -nogpulib -nogpuinc -nostdinc -isystem "${zig}/lib/include" -ffreestanding
    -O3 -std=c++17 -ffp-contract=off -mcode-object-version=5 -Rpass-analysis=kernel-resource-usage -Wno-unused-command-line-argument
    ${include} -S "${source}" -o "${OUT}.s")
  run("${OUT}.as.log" "${COMPILER}" clang --target=amdgcn-amd-amdhsa "-mcpu=${ARCH}" -mcode-object-version=5 -c "${OUT}.s" -o "${OUT}.o")
  run("${OUT}.ld.log" "${COMPILER}" ld.lld -shared --no-undefined "${OUT}.o" -o "${made}")
  file(REMOVE "${OUT}.o")
  set(limit 65536)
  if(ARCH STREQUAL "gfx950")
    set(limit 163840)
  endif()
  device_instructions(amdgpu ${ARCH} "${OUT}.s" "${ROOT}/src/device/kernels.def")
  device_report(amdgpu "${OUT}.log" "${ROOT}/src/device/kernels.def" ${limit} IS_UNTOUCHED)
endif()
file(RENAME "${made}" "${OUT}")
