// How often the calling thread has allocated with new, in programs that link this.
#pragma once

namespace hvd {

long allocations_of_this_thread();

}  // namespace hvd
