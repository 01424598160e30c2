# hvd_grpc: gRPC and Protobuf. Static, so that hvdrun is one file that starts fast; shared in sanitizer builds, whose run time cannot
# be in a static program. pkg-config knows the static list in the right order; CMake's packages name the shared libraries only.
hvd_find_package(PkgConfig REQUIRED)

# hvd_ask_pkg_config(VARIABLE ARGUMENT...): the words of its answer, in one call. pkg_check_modules() makes some fifteen a package,
# and each takes 0.3 s for gRPC, which names a hundred others.
function(hvd_ask_pkg_config variable)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} ${ARGN} OUTPUT_VARIABLE said ERROR_VARIABLE why RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "pkg-config ${ARGN}: ${why}(scripts/setup installs what is missing)")
  endif()
  separate_arguments(said UNIX_COMMAND "${said}")
  set(${variable} ${said} PARENT_SCOPE)
endfunction()

# Those that go with the headers, whatever comes first on the PATH.
hvd_ask_pkg_config(prefix --variable=prefix protobuf)
find_program(HVD_PROTOC protoc PATHS ${prefix}/bin NO_DEFAULT_PATH REQUIRED)
hvd_ask_pkg_config(prefix --variable=prefix grpc++)
find_program(HVD_GRPC_PLUGIN grpc_cpp_plugin PATHS ${prefix}/bin NO_DEFAULT_PATH REQUIRED)

add_library(hvd_grpc INTERFACE)
if(HVD_SANITIZE)
  hvd_ask_pkg_config(libraries --libs-only-l grpc++ protobuf)
  list(APPEND libraries absl_synchronization)
else()
  hvd_ask_pkg_config(libraries --libs-only-l --static grpc++ protobuf)
endif()
target_link_libraries(hvd_grpc INTERFACE ${libraries} Threads::Threads)

# hvd_static_program(NAME): links it fully static, position-independent. gcc's -static-pie takes crtbeginS.o, whose frames are
# found by binary search; where a toolchain takes crtbeginT.o instead, the first exception sorts all unwind tables: 12 ms.
function(hvd_static_program name)
  if(HVD_SANITIZE)
    return()
  endif()
  target_link_options(${name} PRIVATE -static-pie -Wl,--eh-frame-hdr $<$<CONFIG:Release>:-s>)
  # Names are looked up through c-ares, and nothing is opened at run time.
  set_target_properties(${name} PROPERTIES RULE_LAUNCH_LINK ${PROJECT_SOURCE_DIR}/scripts/cmake/link_static)
endfunction()
