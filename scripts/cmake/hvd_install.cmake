# What `cmake --install` puts where: hvdrun and its man page, the two libraries, their headers, and what find_package(hvd)
# and pkg-config read. Nothing internal is installed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET hvdrun)
  install(TARGETS hvdrun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${CMAKE_BINARY_DIR}/share/man/man1/hvdrun.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
endif()

# libhvd_torch finds libhvd beside it, and LibTorch where it was when this was built.
set(rpath_hvd "$ORIGIN")
set(rpath_hvd_torch "$ORIGIN" ${HVD_TORCH_DIR}/lib)
foreach(library hvd hvd_torch)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "${rpath_${library}}")
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

# Opened by libhvd where it lies: beside it.
if(TARGET hvd_nccl)
  install(TARGETS hvd_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

if(TARGET hvd_torch)
  set(without_torch "")
else()
  set(without_torch PATTERN torch.h EXCLUDE)
endif()
install(DIRECTORY runtime/include/hvd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h ${without_torch})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hvd)
configure_package_config_file(scripts/cmake/hvdConfig.cmake.in ${CMAKE_BINARY_DIR}/hvdConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/hvdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/hvdConfig.cmake ${CMAKE_BINARY_DIR}/hvdConfigVersion.cmake DESTINATION ${package_dir})
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(scripts/cmake/hvd.pc.in ${CMAKE_BINARY_DIR}/hvd.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/hvd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
