// Between the structs of our own and their messages.
#pragma once

#include "proto/rendezvous.pb.h"
#include "rendezvous/world.h"

namespace hvd {

World from_proto(const proto::World& message);
void to_proto(const World& world, proto::World& message);

}  // namespace hvd
