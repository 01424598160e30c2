#include "rendezvous/permission.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

namespace hvd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kNoRank = -1;  // in Stuck: of a process that a rank had started

struct Speaker {
  int host;
  const std::set<int>& ranks;
  uint32_t epoch;

  std::string objection_to(const Message& message) const {
    const Reflection& look = *message.GetReflection();
    const auto& type = *message.GetDescriptor();
    // Each field, not only those that are set: rank 0 and host 0 are what is not.
    for (int number = 0; number < type.field_count(); ++number) {
      const FieldDescriptor* field = type.field(number);
      const bool many = field->is_repeated();
      const bool absent = !many && field->has_presence() && !look.HasField(message, field);
      const int count = many ? look.FieldSize(message, field) : absent ? 0 : 1;
      for (int i = 0; i < count; ++i)
        if (std::string why = objection_to(message, look, field, i); !why.empty()) return why;
    }
    return {};
  }

  std::string objection_to(const Message& message, const Reflection& look,
                           const FieldDescriptor* field, int i) const {
    const bool many = field->is_repeated();
    if (field->type() == FieldDescriptor::TYPE_MESSAGE)
      return objection_to(many ? look.GetRepeatedMessage(message, field, i)
                               : look.GetMessage(message, field));
    if (field->type() == FieldDescriptor::TYPE_UINT32 && field->name() == "epoch") {
      const uint32_t value = look.GetUInt32(message, field);
      return value <= epoch ? "" : "it speaks of epoch " + std::to_string(value);
    }
    if (field->type() != FieldDescriptor::TYPE_INT32) return {};
    const int value =
        many ? look.GetRepeatedInt32(message, field, i) : look.GetInt32(message, field);
    if (field->name() == "host" && value != host)
      return "it speaks for host " + std::to_string(value);
    const bool of_rank = field->name() == "rank" || field->name() == "ranks";
    const bool of_none = value == kNoRank && message.GetDescriptor() == proto::Stuck::descriptor();
    if (of_rank && !of_none && !ranks.contains(value))
      return "it speaks for rank " + std::to_string(value);
    return {};
  }
};

}  // namespace

std::string objection(const proto::FromAgent& message, int host, const std::set<int>& ranks,
                      uint32_t epoch) {
  return Speaker{host, ranks, epoch}.objection_to(message);
}

}  // namespace hvd
