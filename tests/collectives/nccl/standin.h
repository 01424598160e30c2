// What a test asks of the stand-ins of the CUDA driver and of NCCL, and what it learns from them.
//
// libcuda_standin.so has all of this but hvd_standin_waiting(), which is in libnccl_standin.so;
// that one is linked with it. A program that opens them by path, as the product does, and one that
// is linked with them, see the same copy.
//
// Device memory is the device's: the host that touches it is ended by a signal, as with CUDA.
// hvd_standin_memory() shows where its bytes lie.
//
// Each rule that is broken (a violation) ends the process with its text on stderr, unless the
// setting abort_on_violation is 0; then it is noted, and the call fails.
#pragma once

#include <stddef.h>

extern "C" {

// Settings, by name; null takes one back. What is not set is taken from the environment, as
// HVD_STANDIN_ and the name in capitals, else it is what is written here. Those of devices are read
// by cuInit(), all others at each use.
//
//   devices             how many there are (1)
//   device_names        "A;B": one each, the last for the rest (NVIDIA Stand-in)
//   device_uuids        "…;…" of 32 hexadecimal digits each (told apart by ordinal)
//   device_pci          "0000:17:00.0;…" (told apart by ordinal)
//   device_bytes        memory of each (8 GiB)
//   init_result         what cuInit() returns, a CUresult: 100 is no device, 803 a driver that
//                       does not fit (0)
//   driver_version      13000
//   delay_us            work of a stream begins up to so much later than it could (100)
//   seed                of what is random here (1)
//   lost_device         "1": the device that is lost; "1:7" by the seventh call from now,
//                       "1:cuMemFree:2" by the second cuMemFree(), or call of NCCL's with a
//                       communicator of that device: this call and all later ones fail, and what
//                       its streams were given does not begin. It is back when this is taken back
//                       (-1)
//   held_kernel         a kernel of that name does not begin until this is taken back
//   kernel_fails        the kernel of that name fails, with it all later calls as above
//   architecture        compute capability for which a fatbin must have code when it is loaded (90)
//   module_result       what cuModuleLoadData() returns (0)
//   no_peer_access      cuDeviceCanAccessPeer() says no (0)
//   folder              where the sockets of unique ids are; they are abstract without
//   abort_on_violation  (1)
//
//   nccl_version        22809
//   slots               collectives that a device runs at a time (1)
//   launch_order_implicit  they begin in the order of their launches, as with
//                       NCCL_LAUNCH_ORDER_IMPLICIT=1, which does the same (0)
//   first_collective_connects  the first collective of a communicator is in progress until all
//   ranks
//                       have called theirs (0)
//   launch_hangs        from the collective of that number on a call is in progress until
//                       ncclCommAbort() (0: never)
//   registers_nothing   ncclCommRegister() succeeds with a null handle, as with
//                       NCCL_LOCAL_REGISTER=0, which does the same (0)
//   granularity         ncclMemAlloc() takes a multiple of so much of the device's room (1; real
//                       ones 2 MiB)
//   in_progress_percent how often a call of a non-blocking communicator that need not wait for
//                       other ranks ends as ncclInProgress all the same; NCCL's always do (100)
//   no_windows          ncclCommWindowRegister() gives none, without an error: null since 2.29,
//                       before that what registers the memory by itself (0)
//   nodes               hosts that NCCL takes the ranks for: with several it has no kernels for
//                       windows (1)
//   slow_us             a collective takes so much longer (0)
//   peer_death_error    when a rank is gone the others' communicators tell ncclRemoteError;
//                       otherwise they hang until they are aborted (0)
//   conf                "NAME=VALUE" of NCCL's configuration file: set with the first id or
//                       communicator
//   fault_rank          the rank, in each communicator, where the following happen; -1: all (-1)
//   init_result_nccl    how making a communicator ends, an ncclResult_t (0)
//   init_hangs          making a communicator never ends, but by ncclCommAbort() (0)
//   async_error_after   from the collective of that number on, 1 is the first, nothing ends, and
//                       ncclCommGetAsyncError() tells async_error (0: never)
//   async_error         an ncclResult_t (1, ncclUnhandledCudaError)
//   registration_fails  ncclCommRegister() fails, and the communicator goes on (0)
//   window_hangs        ncclCommWindowRegister() never ends, but by ncclCommAbort() (0)
//   finalize_hangs      nor does ncclCommFinalize() (0)
//   abort_hangs         nor does ncclCommAbort() (0)
//   fail_call           "ncclAllReduce:3:2": the third call from now returns 2, ncclSystemError;
//                       "window:1:2": the first window ends so, of which all ranks take part
void hvd_standin_set(const char* name, const char* value);

// Counted for each device, or -1 for all: collectives, collective_launches (a group is one for each
// communicator), "streams of flags F and priority P", symmetric_collectives (all buffers lie in
// symmetric windows), symmetric_sums (of these what NCCL has kernels for), registered_collectives
// (or in other registered memory), windows (ncclCommWindowRegister() has begun), copies_in,
// copies_out, copies_within and bytes_in, bytes_out, bytes_within, memsets, kernels, "kernel NAME"
// (those of that name), host_waits, drains (cuCtxSynchronize(), which is in host_waits no more than
// ncclMemFree() is), communicators, unique_ids (that these connected with: each rank's counts all
// of them), errors_told (by ncclCommGetAsyncError()), aborts. Unknown names count nothing.
long long hvd_standin_count(const char* name, int device);
void hvd_standin_reset_counts();

// Texts stay where they are.
int hvd_standin_violations();
const char* hvd_standin_violation(int number);
void hvd_standin_forget_violations();

// Collectives that never end because the ranks' calls differ, as seen by the process that made the
// unique id; the text names both. A test waits for it, and then knows that nothing will come.
int hvd_standin_mismatches();
const char* hvd_standin_mismatch(int number);
// Collectives of this process that wait for other ranks, each in one of its device's slots.
int hvd_standin_waiting(int device);

// 1: nothing of this process's stand-ins goes on by itself; all that streams, communicators and the
// hub do waits for something else to be called, or for other processes. Not while time passes, or
// a kernel runs.
int hvd_standin_quiet();

// Where the bytes of device memory lie for the host; null: nowhere.
void* hvd_standin_memory(const void* device_pointer);
// Bytes in use of a device by this process.
size_t hvd_standin_used(int device);

// A kernel by its name, as the CPU does it: cuModuleGetFunction() finds it in every module that is
// no fatbin; those of a fatbin are the product's, which need not be given. It is
// run once for the whole grid when the stream comes to it, with copies of its arguments, of `sizes`
// bytes each. Device pointers among them are the device's.
typedef void (*hvd_standin_kernel_function)(const unsigned grid[3], const unsigned block[3],
                                            void** arguments);
void hvd_standin_kernel(const char* name, int arguments, const size_t* sizes,
                        hvd_standin_kernel_function run);
}
