#include "cli/messages.h"

namespace hvd {

World from_proto(const proto::World& message) {
  World world;
  world.epoch = message.epoch();
  world.rank = message.rank();
  world.size = message.size();
  world.local_rank = message.local_rank();
  world.local_size = message.local_size();
  world.cross_rank = message.cross_rank();
  world.cross_size = message.cross_size();
  world.host = message.host();
  return world;
}

void to_proto(const World& world, proto::World& message) {
  message.set_epoch(world.epoch);
  message.set_rank(world.rank);
  message.set_size(world.size);
  message.set_local_rank(world.local_rank);
  message.set_local_size(world.local_size);
  message.set_cross_rank(world.cross_rank);
  message.set_cross_size(world.cross_size);
  message.set_host(world.host);
}

}  // namespace hvd
