// Device memory that is registered with the communicator there: the same on all ranks, and held
// until it no longer is, whoever else lets go of it.
//
// What ranks let go of each at its own time is taken back on all of them at once, before the next
// is registered. A rank where registering fails so that its communicator is good for nothing more
// has all of them make it anew; then nothing is registered any more in that epoch. All calls but
// clear() are collectives of the init threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace hvd {

class RegisteredMemory {
 public:
  struct Piece {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;  // the same on all ranks
  };

  // Registers the piece, in the log's order. False, on all ranks: one of them cannot, or is
  // `unwilling`, which says why, and it is registered on none; rank 0 has told the user. `number`
  // is the same on all ranks, and new. Throws CommFailure.
  bool add(const std::shared_ptr<Engine::Parts>& parts, const std::string& name, uint32_t number,
           Piece piece, const std::string& unwilling);
  // Of what nobody but this holds, on no rank.
  void give_back(const std::shared_ptr<Engine::Parts>& parts, const std::string& name);
  // The communicator is gone.
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    uint32_t number = 0;
    Piece piece;
    bool is_let_go() const { return piece.memory.use_count() == 1; }
  };
  void give_up(const std::shared_ptr<Engine::Parts>& parts, const std::string& name,
               const std::string& why);
  void warn(const std::shared_ptr<Engine::Parts>& parts, const std::string& words);

  // The init thread's.
  std::vector<Entry> entries_;  // by number
  bool gave_up_ = false;        // on all ranks
  bool warned_ = false;
};

}  // namespace hvd
