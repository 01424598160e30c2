// What nvcc has put into a fatbin, where that is not compressed, or into a text of PTX.
//
// Its form is not documented; this is what nvcc 13.0 writes: a header (u32 0xBA55ED50, u16 version,
// u16 its bytes, u64 bytes behind it), then entries (u16 kind, 1 PTX, 2 machine code; u16; u32 its
// header's bytes; u64 bytes behind that; u32 architecture at byte 28).
#pragma once

#include <string_view>
#include <vector>

#include "tests/collectives/nccl/standin/state.h"

namespace hvd {

struct DeviceCode {
  bool is_ptx = false;
  int architecture = 0;  // 90: compute capability 9.0
  int cuda = 13000;      // 12000: of CUDA 12.0's kind; machine code of the compiler's, as above
  std::string_view bytes;
};

// Empty: it is neither.
HVD_STANDIN_API std::vector<DeviceCode> device_codes(const void* image);

// Whether a device can run it: machine code on those of the same first digit, as new or newer, PTX
// on all that are as new or newer (CUDA C++ Programming Guide, "Binary Compatibility", "PTX
// Compatibility"). A driver takes neither from a later CUDA: machine code of its own first number
// (CUDA Compatibility, "Minor Version Compatibility"), PTX of the kinds that it knows (PTX ISA,
// "PTX ISA Version History": 8.0 is of CUDA 12.0).
HVD_STANDIN_API bool runs_on(const DeviceCode& code, int architecture, int driver);

// Whether there is a kernel of that name.
HVD_STANDIN_API bool has_kernel(const DeviceCode& code, const std::string& name);

}  // namespace hvd
