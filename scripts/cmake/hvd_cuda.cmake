# HVD_WITH_CUDA: the NCCL backend, for which the CUDA compiler and the headers of CUDA and NCCL are looked for. Their
# libraries are not: they are opened when a program uses a device.
set(HVD_CUDA FALSE)
if(NOT HVD_WITH_CUDA STREQUAL "OFF")
  find_program(HVD_NVCC nvcc PATHS /usr/local/cuda/bin)
  find_path(HVD_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include)
  find_path(HVD_NCCL_INCLUDE nccl.h PATHS /usr/local/cuda/include)
  if(HVD_NVCC AND HVD_CUDA_INCLUDE AND HVD_NCCL_INCLUDE)
    set(HVD_CUDA TRUE)
    message(STATUS "CUDA: ${HVD_NVCC}, NCCL: ${HVD_NCCL_INCLUDE}")
  elseif(HVD_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HVD_WITH_CUDA=ON but nvcc (${HVD_NVCC}), cuda.h (${HVD_CUDA_INCLUDE}) or nccl.h (${HVD_NCCL_INCLUDE}) "
      "was not found: set HVD_NVCC, HVD_CUDA_INCLUDE and HVD_NCCL_INCLUDE, or leave HVD_WITH_CUDA at AUTO")
  else()
    message(STATUS "CUDA: not found; built without GPUs")
  endif()
endif()
