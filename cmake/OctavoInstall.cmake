# What `cmake --install` lays down for authors of inference engines: headers, both libraries, the program.
install(TARGETS octavo octavo_static EXPORT octavo
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/octavo" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
if(TARGET octavo_cli)
  install(TARGETS octavo_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
