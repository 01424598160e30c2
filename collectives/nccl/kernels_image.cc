#include "collectives/nccl/kernels_image.h"

// Eight bytes, as in what nvcc links itself.
asm(".pushsection .rodata\n"
    ".balign 8\n"
    "hvd_kernels_image_begin:\n"
    ".incbin \"" HVD_KERNELS_IMAGE
    "\"\n"
    "hvd_kernels_image_end:\n"
    "hvd_kernels_ptx_begin:\n"
    ".incbin \"" HVD_KERNELS_PTX
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const std::byte hvd_kernels_image_begin[], hvd_kernels_image_end[];
extern const char hvd_kernels_ptx_begin[];
}

namespace hvd {

std::span<const std::byte> kernels_image() {
  return {hvd_kernels_image_begin, hvd_kernels_image_end};
}

const char* kernels_ptx() { return hvd_kernels_ptx_begin; }

}  // namespace hvd
