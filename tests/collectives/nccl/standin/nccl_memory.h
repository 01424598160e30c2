// Memory of ncclMemAlloc(), and what communicators have registered of it.
#pragma once

#include <string>

#include "tests/collectives/nccl/standin/nccl_communicator.h"

namespace hvd {

// "2 windows or registrations", empty for none.
std::string registrations_of(const ncclComm* comm);
// With an aborted communicator goes what it registered.
void forget_registrations_of(const ncclComm* comm);

// Whether a collective that was launched and has not ended touches what it stands for.
bool is_in_use(const ncclComm* comm, const void* name);

// The offset of memory of ncclMemAlloc() to its beginning; -1: it is none.
long long offset_in_memory(const void* pointer, size_t bytes);
// Notes one; the result says what it is called: one that is not symmetric the same as before, and
// is removed as often (src/register/register.cc, ncclRegister). `bytes` may lie in any device
// memory.
void* add_registration(const ncclComm* comm, const void* pointer, size_t bytes, bool symmetric);

// Which of the communicator's registrations holds the bytes, by the order in which they were made,
// from 1 on, and for symmetric windows where: for other registrations offsets matter for speed
// only.
struct Place {
  uint64_t number = 0, offset = 0;
  bool symmetric = false;
};
Place find_registration(const ncclComm* comm, const void* pointer, size_t bytes);
// False: it is none of the communicator's.
bool remove_registration(const ncclComm* comm, const void* name);

}  // namespace hvd
