#include "runtime/engine/operation_name.h"

#include <string>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/log_words.h"

namespace hvd {

void check_operation_name(std::string_view name) {
  if (name.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "an operation that is asynchronous, or not called by the thread that called "
                "init(), needs a name, by which ranks find each other's");
  if (name.find('\0') != std::string_view::npos)
    throw Error(ErrorCode::kInvalidArgument, "the name \"" +
                                                 std::string(name.substr(0, name.find('\0'))) +
                                                 "…\" has a byte of value 0 in it");
  if (name.size() >= LogWords::kNameBytes)
    throw Error(ErrorCode::kInvalidArgument,
                "the name \"" + std::string(head_of(name, 32)) + "…\" is " +
                    std::to_string(name.size()) + " bytes long; at most " +
                    std::to_string(LogWords::kNameBytes - 1) + " are possible");
}

}  // namespace hvd
