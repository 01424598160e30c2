#include "collectives/describe.h"

#include <string.h>

#include <bit>

#include "runtime/base/exact_text.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

// A few nanoseconds for a name of usual length: this is on the path of eight bytes.
uint64_t mix_text(uint64_t hash, std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t part;
    memcpy(&part, text.data() + at, 8);
    hash = mix_hash(hash, part);
  }
  uint64_t rest = 0;
  if (at < text.size()) memcpy(&rest, text.data() + at, text.size() - at);
  return mix_hash(mix_hash(hash, rest), text.size());
}

// Of a text that has to fit beside the words: names that are too long often differ at their end.
std::string shortened(std::string_view name) {
  constexpr size_t kHead = 64, kTail = 61;
  if (name.size() <= kHead + kTail) return std::string(name);
  return std::string(head_of(name, kHead)) + "…" + std::string(tail_of(name, kTail));
}

const char* name_of(OperationKind kind) {
  constexpr const char* kNames[] = {"allreduce",  "allgather",    "broadcast",
                                    "barrier",    "arena_buffer", "register",
                                    "deregister", "reconnect",    "split"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

// The finaliser of splitmix64 (public domain, S. Vigna) over the running value.
uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) + 0x9e3779b97f4a7c15;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
  return hash ^ hash >> 31;
}

uint64_t hash_of(const Operation& operation, uint64_t seed) {
  uint64_t hash = mix_hash(seed, static_cast<uint64_t>(operation.kind) |
                                     static_cast<uint64_t>(operation.result.type) << 8 |
                                     static_cast<uint64_t>(operation.on_device) << 16);
  switch (operation.kind) {
    case OperationKind::kAllreduce:
      hash = mix_hash(hash, static_cast<uint64_t>(operation.reduction.op));
      if (operation.reduction.prescale != 1 || operation.reduction.postscale != 1) {
        hash = mix_hash(hash, std::bit_cast<uint64_t>(operation.reduction.prescale));
        hash = mix_hash(hash, std::bit_cast<uint64_t>(operation.reduction.postscale));
      }
      hash = mix_hash(hash, operation.result.count);
      break;
    case OperationKind::kBroadcast:
      hash = mix_hash(hash, static_cast<uint64_t>(operation.root));
      hash = mix_hash(hash, operation.result.count);
      break;
    case OperationKind::kSegment:
      hash = mix_hash(hash, operation.segment);
      hash = mix_hash(hash, operation.segment_bytes);
      hash = mix_hash(hash, operation.populate_bytes);
      break;
    case OperationKind::kRegister:
    case OperationKind::kDeregister:
      hash = mix_hash(hash, operation.result.count);
      break;
    case OperationKind::kAllgather:
    case OperationKind::kBarrier:
    case OperationKind::kReconnect:
    case OperationKind::kSplit:
      break;
  }
  return mix_text(mix_hash(hash, operation.shape_hash), operation.name);
}

std::string describe(const Operation& operation) {
  std::string text = name_of(operation.kind);
  if (!operation.name.empty()) text += " \"" + shortened(operation.name) + "\"";
  if (operation.kind == OperationKind::kBarrier || operation.kind == OperationKind::kReconnect ||
      operation.kind == OperationKind::kSplit)
    return text;
  if (operation.kind == OperationKind::kSegment)
    return text + " of " + std::to_string(operation.segment_bytes) + " bytes";
  const bool gathers = operation.kind == OperationKind::kAllgather;
  const size_t count = gathers ? operation.input.count : operation.result.count;
  text += " ";
  text += operation.shape.empty() ? std::string(hvd::name_of(operation.result.type)) + " [" +
                                        std::to_string(count) + "]"
                                  : std::string(operation.shape);
  if (operation.on_device) text += kOnGpu;
  if (operation.kind == OperationKind::kBroadcast)
    text += " from rank " + std::to_string(operation.root);
  if (operation.kind == OperationKind::kAllreduce) {
    text += std::string(" ") + hvd::name_of(operation.reduction.op);
    if (operation.reduction.prescale != 1)
      text += " prescale " + exact_text(operation.reduction.prescale);
    if (operation.reduction.postscale != 1)
      text += " postscale " + exact_text(operation.reduction.postscale);
  }
  return text;
}

}  // namespace hvd
