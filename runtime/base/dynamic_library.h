// A library that is opened while the program runs, for what may not be there.
//
// Once open it stays: what it has started (threads, handlers at the process's end) cannot be
// undone.
#pragma once

#include <string>

namespace hvd {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // Throws kUnavailable with the loader's words and the advice. `what` it is, for texts: "NCCL".
  DynamicLibrary(const std::string& name, const std::string& what, const std::string& advice = "");

  // Sets the pointer to the function of this name. Throws kUnavailable when it has none.
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address(name, true));
  }
  // The same, null when it has none.
  template <class Function>
  void find_if_there(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address(name, false));
  }
  // Where it was found, for texts.
  const std::string& path() const { return path_; }

 private:
  void* address(const char* name, bool needed) const;

  void* handle_ = nullptr;
  std::string path_, what_;
};

}  // namespace hvd
