// Device memory for LibTorch, kept and given out again in the order of streams, as c10's allocator
// for CUDA does it.
//
// Memory that is freed is overwritten at once in the stream that it was had in: whoever uses it in
// another one without record_stream(), or without an event, sees that.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace hvd {

// It is used in that stream, too: given out again once what is there by the time that it is freed
// has been done. Memory of others is left alone.
void record_use(const c10::DataPtr& memory, const c10::Stream& stream);

// What the allocator keeps it gives back to the device when it is asked to, unless one of these
// lives: as if some of each piece were in use.
class KeptCache {
 public:
  KeptCache();
  ~KeptCache();
  KeptCache(const KeptCache&) = delete;
  KeptCache& operator=(const KeptCache&) = delete;
};

}  // namespace hvd
