# HVD_WITH_CUDA: looks for the CUDA compiler and NCCL and says what it found. Nothing is built with them yet.
if(NOT HVD_WITH_CUDA STREQUAL "OFF")
  find_program(HVD_NVCC nvcc PATHS /usr/local/cuda/bin)
  find_path(HVD_NCCL_INCLUDE nccl.h PATHS /usr/local/cuda/include)
  if(HVD_NVCC AND HVD_NCCL_INCLUDE)
    message(STATUS "CUDA: ${HVD_NVCC}, NCCL: ${HVD_NCCL_INCLUDE}; found, but no part of hvdrun uses them yet")
  elseif(HVD_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HVD_WITH_CUDA=ON but nvcc (${HVD_NVCC}) or nccl.h (${HVD_NCCL_INCLUDE}) was not found: "
      "set HVD_NVCC and HVD_NCCL_INCLUDE, or leave HVD_WITH_CUDA at AUTO; no part of hvdrun uses them yet")
  else()
    message(STATUS "CUDA: not found, and no part of hvdrun uses it yet")
  endif()
endif()
