// Sizes in words, and the limit on them.
#include "cli/ship/ship_offer.h"

#include "tests/support/catch.h"

namespace hvd {

TEST_CASE("ship_offer: sizes read well") {
  CHECK(size_text(0) == "0.0 MB");
  CHECK(size_text(1'540'000) == "1.5 MB");
  CHECK(size_text(812'400'000) == "812 MB");
  CHECK(size_text(2'147'483'648) == "2.1 GB");
}

TEST_CASE("ship_offer: more than the limit is refused with the largest named") {
  const std::vector<OfferedFile> files = {
      {"/a", 10}, {"/b", 3'000'000'000}, {"/c", 20'000'000}, {"/d", 30'000'000}};
  CHECK(limit_objection(files, 3'050'000'010).empty());
  CHECK(limit_objection(files, 3'050'000'009) ==
        "what is to be shipped comes to 3.1 GB, and --ship-limit allows 3.1 GB; the largest: "
        "\"/b\" (3.0 GB), \"/d\" (30 MB), \"/c\" (20 MB); leave some out, or raise it by "
        "--ship-limit 3G");
  CHECK(limit_objection({}, 0).empty());
}

}  // namespace hvd
