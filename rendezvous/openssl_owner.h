// Owners of OpenSSL's objects. Only sources that use OpenSSL include it.
#pragma once

#include <memory>

namespace hvd {

template <auto free_it>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    free_it(object);
  }
};

template <typename T, auto free_it>
using OpensslOwner = std::unique_ptr<T, OpensslFree<free_it>>;

}  // namespace hvd
