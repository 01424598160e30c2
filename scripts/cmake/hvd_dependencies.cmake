# What the project needs from outside, found once. Each optional part is one switch and one stub source file.
find_package(Threads REQUIRED)

# spdlog and fmt header-only: libhvd must bring no library of its own into a training process, and hvdrun is static.
find_package(spdlog REQUIRED)
add_library(hvd_fmt INTERFACE)
target_link_libraries(hvd_fmt INTERFACE spdlog::spdlog_header_only)

if(HVD_BUILD_TESTS)
  find_package(Catch2 REQUIRED)
endif()

include(hvd_torch)
include(hvd_cuda)
