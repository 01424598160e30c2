# hvd_grpc: gRPC and Protobuf. Static, so that hvdrun is one file that starts fast; shared in sanitizer builds, whose run time cannot
# be in a static program. pkg-config knows the static list in the right order; CMake's packages name the shared libraries only.
hvd_find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPCXX REQUIRED grpc++)
pkg_check_modules(PROTOBUF REQUIRED protobuf)
# Those that go with the headers, whatever comes first on the PATH.
pkg_get_variable(prefix protobuf prefix)
find_program(HVD_PROTOC protoc PATHS ${prefix}/bin NO_DEFAULT_PATH REQUIRED)
pkg_get_variable(prefix grpc++ prefix)
find_program(HVD_GRPC_PLUGIN grpc_cpp_plugin PATHS ${prefix}/bin NO_DEFAULT_PATH REQUIRED)

add_library(hvd_grpc INTERFACE)
if(HVD_SANITIZE)
  target_link_libraries(hvd_grpc INTERFACE ${GRPCXX_LIBRARIES} absl_synchronization ${PROTOBUF_LIBRARIES} Threads::Threads)
else()
  target_link_libraries(hvd_grpc INTERFACE ${GRPCXX_STATIC_LIBRARIES} ${PROTOBUF_STATIC_LIBRARIES} Threads::Threads)
endif()

# hvd_static_program(NAME): links it fully static, position-independent. gcc's -static-pie takes crtbeginS.o, whose frames are
# found by binary search; where a toolchain takes crtbeginT.o instead, the first exception sorts all unwind tables: 12 ms.
# The linker's warnings, all of which name functions that need the same glibc's shared libraries when they are called
# (dlopen, getaddrinfo and the like), say nothing new: names are looked up through c-ares.
include(CheckLinkerFlag)
check_linker_flag(CXX -Wl,--no-warnings HVD_LINKER_CAN_BE_SILENT)
function(hvd_static_program name)
  if(HVD_SANITIZE)
    return()
  endif()
  target_link_options(${name} PRIVATE -static-pie -Wl,--eh-frame-hdr
    $<$<BOOL:${HVD_LINKER_CAN_BE_SILENT}>:-Wl,--no-warnings> $<$<CONFIG:Release>:-s>)
endfunction()
