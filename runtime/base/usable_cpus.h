// How many CPUs this process may really use.
#pragma once

namespace hvd {

// The affinity mask, bounded by the cgroup's quota (rounded up); at least 1. Reads files: ask once.
int usable_cpus();

}  // namespace hvd
