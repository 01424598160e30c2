// Whether ranks of a host share memory, shown through the memory. One thread is all ranks.
#include "collectives/memory_proof.h"

#include <array>
#include <optional>
#include <string>

#include "hvd/error.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_peers.h"

using namespace hvd;

namespace {

constexpr int kRanks = 3;
constexpr uint64_t kBytes = 8192, kOffset = 4096;

class Ranks {
 public:
  Ranks() {
    for (int rank = 0; rank < kRanks; ++rank) peers_.push_back(host_.peers(rank));
    peers_[0]->request_segment(0, kBytes);
    peers_[0]->request_segment(1, kBytes);  // of which nobody else knows
  }
  std::vector<UniqueFd> pieces(uint32_t segment = 0) {
    return std::move(*peers_[0]->take_segment(segment));
  }
  MemoryProof give(int rank, std::vector<UniqueFd> pieces) {
    return {*peers_[size_t(rank)],
            std::make_shared<Segment>(0, std::move(pieces), kBytes, rank, kBytes), kOffset};
  }

 private:
  InProcessHost host_{kRanks};
  std::vector<std::unique_ptr<Peers>> peers_;
};

// Of each rank, where rank 1 maps these.
std::array<std::string, kRanks> errors_where_rank_1_maps(Ranks& ranks, std::vector<UniqueFd> its) {
  std::array<std::string, kRanks> errors;
  MemoryProof proofs[] = {ranks.give(0, ranks.pieces()), ranks.give(1, std::move(its)),
                          ranks.give(2, ranks.pieces())};
  for (size_t rank = 0; rank < kRanks; ++rank) {
    try {
      const bool complete = proofs[rank].complete();
      CHECK(complete);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      errors[rank] = error.what();
    }
  }
  return errors;
}

}  // namespace

TEST_CASE("memory proof: complete once every rank's word has arrived") {
  Ranks ranks;
  MemoryProof zero = ranks.give(0, ranks.pieces());
  CHECK_FALSE(zero.complete());
  CHECK(zero.missing() == std::vector{1, 2});
  MemoryProof two = ranks.give(2, ranks.pieces());
  CHECK_FALSE(zero.complete());
  CHECK(two.missing() == std::vector{1});
  MemoryProof one = ranks.give(1, ranks.pieces());
  for (MemoryProof* proof : {&zero, &one, &two}) {
    CHECK(proof->complete());
    CHECK(proof->missing().empty());
  }
}

TEST_CASE("memory proof: whoever maps other memory than the others is named") {
  Ranks ranks;
  const auto errors = errors_where_rank_1_maps(ranks, ranks.pieces(1));
  CHECK(errors[0] ==
        "ranks 0, 1 are on one host, but share no memory: what rank 1 stores does not reach rank "
        "0; run them outside of what keeps it apart, such as a sandbox or a preloaded library");
  CHECK_THAT(errors[1], Catch::Contains("what rank 0 stores does not reach rank 1;"));
  CHECK_THAT(errors[2], Catch::Contains("ranks 1, 2 are") &&
                            Catch::Contains("what rank 1 stores does not reach rank 2;"));
}

TEST_CASE("memory proof: one piece that is another's, or nobody's, is found") {
  const int piece = GENERATE(0, 1, 2);
  CAPTURE(piece);
  Ranks ranks;
  std::vector<UniqueFd> its = ranks.pieces();
  its[size_t(piece)] = std::move(ranks.pieces(1)[size_t(piece)]);
  const auto errors = errors_where_rank_1_maps(ranks, std::move(its));
  CHECK_FALSE(errors[1].empty());
  CHECK(errors[0].empty() == (piece == 2));
  CHECK(errors[2].empty() == (piece == 0));
}

TEST_CASE("memory proof: two pieces in each other's place are found") {
  Ranks ranks;
  std::vector<UniqueFd> its = ranks.pieces();
  std::swap(its[0], its[2]);
  const auto errors = errors_where_rank_1_maps(ranks, std::move(its));
  for (const std::string& error : errors) CHECK_FALSE(error.empty());
}
