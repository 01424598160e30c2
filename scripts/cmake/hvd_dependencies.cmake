# What the project needs from outside, found once. Each optional part is one switch and one stub source file.
find_package(Threads REQUIRED)

# hvd_find_package(NAME [OPTION...]): find_package() but for what lies beside programs on the PATH. There a conda environment
# has headers that go with other libraries than the system's. CMAKE_PREFIX_PATH names another place on purpose.
macro(hvd_find_package)
  set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH FALSE)
  find_package(${ARGN})
  unset(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH)
endmacro()

# spdlog and fmt header-only: libhvd must bring no library of its own into a training process, and hvdrun is static.
hvd_find_package(spdlog REQUIRED)
add_library(hvd_fmt INTERFACE)
target_link_libraries(hvd_fmt INTERFACE spdlog::spdlog_header_only)
# Its package asks for the shared fmt, which no static program can take in.
set_target_properties(spdlog::spdlog_header_only PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;fmt::fmt-header-only")

if(HVD_BUILD_TESTS)
  hvd_find_package(Catch2 REQUIRED)
endif()

# Where scripts/setup keeps what it does not install for the whole machine.
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/cache_home OUTPUT_VARIABLE environments OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(APPEND environments /hvdrun)
include(hvd_torch)
include(hvd_cuda)
