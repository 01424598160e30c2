#include "runtime/base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include "hvd/error.h"

namespace hvd {
namespace {

std::string last_error() {
  const char* text = dlerror();
  return text == nullptr ? "no reason was given" : text;
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::string& name, const std::string& what,
                               const std::string& advice)
    : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)),
      path_(name),
      what_(what) {
  if (handle_ == nullptr)
    throw Error(ErrorCode::kUnavailable, what + " cannot be loaded: " + last_error() +
                                             (advice.empty() ? "" : "; " + advice));
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && *map->l_name != 0)
    path_ = map->l_name;
}

void* DynamicLibrary::address(const char* name, bool needed) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr && needed)
    throw Error(ErrorCode::kUnavailable,
                what_ + " in " + path_ + " lacks " + name + "; it is too old, or another library");
  return found;
}

}  // namespace hvd
