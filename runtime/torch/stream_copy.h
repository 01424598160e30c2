// Copies past the caches.
#pragma once

#include <cstddef>

namespace hvd {

// As memcpy, in stores that write whole cache lines to memory without reading them first. For
// places that have left all caches when they are written, and will have when they are next read:
// such a copy then takes half the time, where the lines are still cached several times as long.
// A plain memcpy on machines without 64-byte stores.
void stream_copy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace hvd
