# What tests/cuda and tests/hip share: the model behind the doubles, the cases that hold for every driver, and how both become tests.
if(NOT TARGET driver_cases)
  include("${PROJECT_SOURCE_DIR}/tests/parity/judge.cmake")

  add_library(driver_cases STATIC EXCLUDE_FROM_ALL)
  foreach(source IN ITEMS driver_cases.c driver_results.c double_cases.c executor_driver.c step.c)
    target_sources(driver_cases PRIVATE "${PROJECT_SOURCE_DIR}/tests/driver/${source}")
  endforeach()
  octavo_defaults(driver_cases)
  target_include_directories(driver_cases PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(driver_cases PUBLIC device_check parity_judge ${OCTAVO_CMOCKA} ${CMAKE_DL_LIBS})

  # driver_double(name source): a shared library with the vendor's names, which hides the executor in it.
  function(driver_double name source)
    add_library(${name} MODULE ${source} "${PROJECT_SOURCE_DIR}/tests/driver/double.c")
    octavo_defaults(${name})
    set_target_properties(${name} PROPERTIES PREFIX "lib")
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
    target_link_libraries(${name} PRIVATE device_executor)
  endfunction()

  # The programs for a machine with a GPU (argument: gpu), and what they need beside them there.
  add_custom_target(driver_gpu)

  # driver_test(vendor double): test_driver.c over the double, as driver_<vendor>, and among those of driver_gpu.
  # Where the library has code of its own, the tests use that. Else a double gets files that only look so: it runs the host's kernels anyway.
  function(driver_test vendor double)
    set(driver_code_source "")
    if(NOT OCTAVO_DEVICE_EMBEDDED)
      set(driver_code_source "${PROJECT_SOURCE_DIR}/tests/driver/standin_code.c")
    endif()
    add_library(${vendor}_lacking MODULE lacking.c)
    octavo_defaults(${vendor}_lacking)
    octavo_test(NAME driver_${vendor} SOURCES test_driver.c ${driver_code_source} LABELS fast LINK driver_cases
      ARGS $<TARGET_FILE:${double}> $<TARGET_FILE:${vendor}_lacking>)
    set_target_properties(driver_${vendor} PROPERTIES BUILD_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
    add_dependencies(driver_${vendor} ${double} ${vendor}_lacking)
    get_filename_component(cmocka "${OCTAVO_CMOCKA}" REALPATH)
    add_custom_target(driver_${vendor}_gpu
      COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${cmocka}" "${CMAKE_CURRENT_BINARY_DIR}/libcmocka.so.0" DEPENDS driver_${vendor})
    add_dependencies(driver_gpu driver_${vendor}_gpu)
  endfunction()
endif()
