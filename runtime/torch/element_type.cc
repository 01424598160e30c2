// The table of element types.
#include "runtime/torch/element_type.h"

#include <array>
#include <utility>

namespace hvd {
namespace {

constexpr std::array<std::pair<at::ScalarType, DataType>, kDataTypes> kTypes = {{
    {at::kByte, DataType::kUint8},
    {at::kChar, DataType::kInt8},
    {at::kInt, DataType::kInt32},
    {at::kLong, DataType::kInt64},
    {at::kHalf, DataType::kFloat16},
    {at::kBFloat16, DataType::kBfloat16},
    {at::kFloat, DataType::kFloat32},
    {at::kDouble, DataType::kFloat64},
    {at::kBool, DataType::kBool},
}};

}  // namespace

DataType data_type_of(at::ScalarType type, const std::string& subject) {
  for (const auto& [theirs, ours] : kTypes)
    if (theirs == type) return ours;
  throw Error(ErrorCode::kUnsupported, subject + " has elements of type " + c10::toString(type) +
                                           ", which collectives do not take; convert it first");
}

at::ScalarType scalar_type_of(DataType type) {
  for (const auto& [theirs, ours] : kTypes)
    if (ours == type) return theirs;
  return at::ScalarType::Undefined;
}

std::string describe(at::ScalarType type, at::IntArrayRef sizes) {
  std::string text = c10::toString(type);
  for (const auto& [theirs, ours] : kTypes)
    if (theirs == type) text = name_of(ours);
  text += " [";
  for (size_t d = 0; d < sizes.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
  return text + "]";
}

std::string describe(const at::Tensor& tensor) {
  return describe(tensor.scalar_type(), tensor.sizes());
}

}  // namespace hvd
