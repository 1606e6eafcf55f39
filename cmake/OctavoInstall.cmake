# What `cmake --install` lays down for authors of inference engines: headers, both libraries, the CMake package, the
# pkg-config file; and the program where the engine was built.
include(CMakePackageConfigHelpers)

install(TARGETS octavo octavo_static EXPORT octavo-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/octavo" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
if(TARGET octavo_cli)
  install(TARGETS octavo_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/octavo")
install(EXPORT octavo-targets NAMESPACE octavo:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/octavo-config.cmake.in" "${CMAKE_BINARY_DIR}/octavo-config.cmake"
  INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may break its callers.
write_basic_package_version_file("${CMAKE_BINARY_DIR}/octavo-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/octavo-config.cmake" "${CMAKE_BINARY_DIR}/octavo-config-version.cmake" DESTINATION "${package_dir}")

file(RELATIVE_PATH octavo_pc_to_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" octavo_pc_to_prefix "${octavo_pc_to_prefix}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/octavo.pc.in" "${CMAKE_BINARY_DIR}/octavo.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/octavo.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
